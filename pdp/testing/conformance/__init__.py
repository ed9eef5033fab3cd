"""One suite for every enforcement point: what it has to do, and in which faults a tool must not run.

- target.py: what the suite drives: an enforcement point with its client
- cases.py: the cases
- run.py: the cases run on a target, and what came of each
- table.py: the table of the documents, made from runs
"""
