"""Tool contracts: everything that is checked before the policy decides.

* request: runs the checks in order and builds the request from the manifest's mappings.
* checks: the checks of a proposal.
* compiled: manifest entries, compiled once, so that checks of calls are fast.
* invariants: structural rules of a tool, from a manifest or in Python, which correct, prune or reject calls.
* sensitive: hides the values of sensitive arguments in messages, logs and events.
* budgets: the amounts that a call takes from its cumulative limits.
* plan: checks a whole plan by the rules of its tools.
* inputs: the config and state that a tool function receives, and the state after its result.
* registry/: tools with their functions and contracts in Python.
"""
