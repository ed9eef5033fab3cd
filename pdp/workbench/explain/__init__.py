"""Why one proposal was decided as it was.

explain: the checks before the policy and every rule.
trace: which rules fired and where the others stopped, from OPA's trace.
"""
