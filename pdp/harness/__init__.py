"""Scenarios: what a policy is shown to do, what none of them proves, and who would notice if it broke."""
