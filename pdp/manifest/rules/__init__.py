"""Rules that apply to manifests after the models have accepted them.

* rules: checks of an entry, of an entry merged with its governance, and of all entries together
* paths: mappings, invariants, and the paths that their expressions read; imported only if an entry has them
* forbidden: entries that are not tools (`not_a_tool.*`); texts: whether a schema limits a text
* labels: paths of result labels, and trusted fields that others can write; imported only if results have labels
* lasting: how far approvals may reach (`approval.lasting`)
* lint: likely mistakes (names, impossible schemas, missing approvers), and the clauses that a tool meets
"""
