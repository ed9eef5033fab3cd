"""The rules of the ten tool patterns, which check a call before its tool runs and check the result afterwards.

* enforcement: `EnforcedCall` applies the rules of a tool's pattern to one call
* rule: the base class of the rules, their inputs and outputs, and checks of evidence
* reads: rules of extraction, lookup, aggregation, search
* derivations: rules of validation, classification, composition, conversion
* effects: rules of action-staging, approval-request
* run: the memory of runs, the open runs, and the application's settings for all runs
* exceptions: the typed exceptions that tools raise, and `PatternFault`
"""
