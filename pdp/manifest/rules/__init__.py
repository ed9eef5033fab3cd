"""What a well-formed manifest can still get wrong.

* rules: an entry by itself, with its governance, and all entries together.
* paths: mappings and invariants, and where the paths of their expressions lead; loaded where an entry has some.
* forbidden: what is not a tool (`not_a_tool.*`); texts: whether a schema bounds a text.
* labels: paths of labels, and what must not be believed; loaded only where results are labelled.
* lint: what can hardly be meant (names, impossible schemas, nobody to approve), and the clauses that a tool meets.
"""
