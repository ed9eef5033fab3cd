"""The run ledger: labels of the data that an agent's run has read. The policy uses the labels to decide later calls.

values: normal forms of values, values inside texts, and the user's own words
labels: labels the values of a result, by the rules in the tool's manifest entry
ledger: the labels of runs and the sources of their values, and the store in memory
roles: the roles of the values in a call's arguments
summary: `context.flow` of a call, and the update of the ledger after its result
words: sentences that say where the values of a call came from
"""
