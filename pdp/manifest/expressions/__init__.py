"""Values of manifest fields that are worked out for each call.

* path: plain paths into arguments and session, which need no library.
* expression: values of mappings, `compile_expression`; loaded where an entry has a mapping.
* cel: what is more than a plain path, and `compile_check` for the checks of invariants: CEL, with its bounds.
"""
