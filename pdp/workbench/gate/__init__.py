"""The release gate: one line for each thing that has to hold before a bundle is released.

gate: the checks, in their order, and loosenings that a person explained.
packs: contract test packs of tools.
result: what the gate found, as lines and as JSON.
"""
