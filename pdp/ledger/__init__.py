"""The run ledger: what a run of an agent has seen, as input of the policy.

values: normal forms of values, values within texts, the user's own words
labels: the labels of a result's values, by what the tool's entry says of its fields
ledger: what is remembered of a run, and its store in memory
summary: `context.flow` of a call, and what its result adds to the ledger
words: where the values of a call came from, in words
"""
