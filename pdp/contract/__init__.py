"""A tool's contract: what is checked before any policy decides.

* request: from a proposal to the request: the order of checks, then the mappings.
* checks: the checks of a proposal.
* compiled: manifest entries made ready for calls.
* invariants: structural rules of a tool, of a manifest or in Python, which correct, prune or reject.
* sensitive: values of sensitive arguments, hidden from whoever reads a message.
* budgets: what a call takes of its cumulative limits.
* plan: a whole plan checked by the rules of its tools.
* inputs: config and state: what a tool gets beside its arguments, and what it leaves.
* registry/: tools with their functions and contracts in Python.
"""
