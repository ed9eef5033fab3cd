"""Two bundles compared: in structure, on known calls, and on generated ones.

bundle_diff: the three layers together.
structure: what changed in rules, data and manifests; policies: rule by rule; manifests: which became which, and how.
known: calls of scenarios and decision logs; generated: calls that nobody wrote.
comparison: the same calls decided by both bundles; groups: differences that have the same cause.
exercise: whether the calls that were decided show what each changed rule does.
result: everything that was found; review: its causes, each as a sentence with the call that shows it.
reports: as text and Markdown.
"""
