"""The conformance suite: checks how an enforcement point treats calls, and that no denied tool runs.

- target.py: the interface between the suite and an enforcement point with its client
- world.py: policy, tools and engine of a case, and the engine's faults
- cases.py: the cases
- run.py: runs cases on a target
- table.py: the table of results for the documentation
"""
