"""Prove that two versions of the policies decide alike, for each head of each concern.

answers: the answer for a head.
compare: asks the questions about two versions of the policies.
rules: the rules of a policy, and which rules a rule may use.
translate: the rules of a policy as terms; bodies: statements and expressions of a rule; builtins: builtin functions.
terms: values and formulas, independent of a solver; values: those that depend on the structure of collections.
solver: asks Z3 about terms. It needs the extra `proof`, as do the last two.
models: small requests for which formulas hold; witness: a call that shows what is wider, confirmed by the engine.
"""
