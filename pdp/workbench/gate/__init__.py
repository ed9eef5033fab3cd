"""The release gate: one line for each thing that has to hold before a bundle is released.

gate: the checks, in their order, and loosenings that a person explained.
changed_rego: unit tests and mutants of the Rego that changed.
packs: contract test packs of tools.
result: what the gate found, as lines and as JSON.
"""
