"""Changes of the baseline's policies that a careful saboteur would make by hand, and who notices each.

approvals, numbers, names, data, runs: what weakens a rule that is there: an equality, a bound, a list, a level.
back_doors: rules that are added, and conditions that a rule gains, for one case that nobody else knows.
mutants: the changes as the files state them, and the request of each that shows its effect.
witnesses: what the witnesses start from.
noticed: the effect of a change, and the unit tests that notice it, in one run of OPA.
test_hand_mutants: each change has the effect that is stated, and unit tests notice what is weakened.
test_hidden_exemption: an exemption for one clerk in a rename of forty rules.
"""
