"""The release gate: the checks that a bundle has to pass before its release.

gate: runs the checks in order, and reads explanations of loosenings.
changed_rego: checks the unit tests and mutants of changed Rego.
packs: runs the contract test packs of tools.
"""
