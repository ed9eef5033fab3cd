"""Compare two bundles: their structure, their decisions on known calls, and their decisions on generated calls.

bundle_diff: runs the whole comparison.
structure: changes of rules, data and manifests; policies: changes of Rego rules; manifests: pairs of manifests.
known: calls from scenarios and decision logs; generated: generated calls.
comparison: decides calls with both bundles; groups: groups calls whose decisions change in the same way.
exercise: finds changed rules whose effect no decided call shows.
result: the result of a comparison; review: describes each cause in a sentence, with a call that shows its effect.
reports: shows the result as text and Markdown.
"""
