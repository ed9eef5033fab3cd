"""What a well-formed manifest can still get wrong.

* rules: an entry by itself, with its governance, and all entries together; what is likely a mistake is a warning.
* paths: where the paths of expressions lead, in the argument schema and in the session.
* forbidden: what is not a tool (`not_a_tool.*`).
* labels: paths of labels, and what must not be believed; loaded only where results are labelled.
* lint: what can hardly be meant (impossible schemas, nobody to approve), and which contract clauses a tool meets.
"""
