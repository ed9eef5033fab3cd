"""One suite for every enforcement point: what it has to do, and in which faults a tool must not run.

- target.py: what the suite drives: an enforcement point with its client
- world.py: policy, tools and engine around it, and the engine's faults
- cases.py: the cases
- run.py: the cases run on a target, and what came of each
- table.py: the table of the documents, made from runs
"""
