"""Explain the decision on a proposal.

explain: explains the checks before the policy and every rule.
trace: finds which rules fired and which condition stopped each other rule, from OPA's trace.
"""
