"""The ten tool patterns at run time: what each demands of a call that may run, and of its result.

* enforcement: `HeldCall`, which holds one call to its pattern, before and after its tool
* rule: what a rule of a pattern gets and gives; evidence
* reads: extraction, lookup, aggregation, search
* derivations: validation, classification, composition, conversion
* effects: action-staging, approval-request
* run: what the application states for all runs, what one remembers, and which ones are open
* exceptions: the typed exceptions that tools raise, and `PatternFault`
"""
