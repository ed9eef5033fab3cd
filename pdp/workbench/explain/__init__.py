"""Why one proposal was decided as it was.

explain: the checks before the policy and every rule, in the order of the flow.
trace: which rules fired and where the others stopped, from OPA's trace.
wording: reasons in a person's words.
"""
