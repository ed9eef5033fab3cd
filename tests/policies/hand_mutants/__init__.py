"""Changes that a careful attacker would make by hand in the baseline, and the tests that must notice the changes.

approvals, numbers, names, data, runs: changes that weaken an existing rule, for example an equality, a bound or a list.
back_doors: added rules, and added conditions that hold only for one hidden case.
mutants: reads these changes, each with a witness: a request for which the change alters the verdict.
witnesses: the base requests from which the witnesses are derived.
noticed: runs OPA with a change, and returns whether the change's witness and the unit tests notice the change.
test_hand_mutants: each change alters the verdict of its witness, and unit tests notice every weakened rule.
test_doors_in_diffs: a bundle diff never reports a back door as harmless.
"""
