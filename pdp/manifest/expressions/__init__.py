"""Values of manifest fields that are worked out for each call.

* path: plain paths into arguments and session, which need no library.
* cel: everything else that begins with `$`, and the checks of invariants: CEL, with its bounds.
* expression: the entry points, `compile_expression` and `compile_check`.
"""
