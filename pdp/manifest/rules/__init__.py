"""What a well-formed manifest can still get wrong.

* rules: an entry by itself, with its governance, and all entries together; what is likely a mistake is a warning.
* paths: where the paths of expressions lead, in the argument schema and in the session.
* forbidden: what is not a tool (`not_a_tool.*`).
* doubts: what is legal and can hardly be meant: impossible schemas, names that nobody else uses, nobody to approve.
* lint: which clauses of the universal contract each tool meets.
"""
