"""Find the changes between two bundles that cause a difference in decisions.

changes: the changes of rules, data and manifests, each of which can be undone or applied alone.
attribution: the changes that move a call; exercise: changed rules whose effect no decided call shows.
proofs: the prover's answers for changed rules.
"""
