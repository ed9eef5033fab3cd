"""The release gate: one line for each thing that has to hold before a bundle is released.

gate: the checks in their order, what they found, and loosenings that a person explained.
changed_rego: unit tests and mutants of the Rego that changed.
packs: contract test packs of tools.
"""
