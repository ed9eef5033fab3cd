"""Values of manifest fields that are worked out for each call.

* expression: plain paths into arguments and session, which need no library; `compile_expression` and `compile_check`.
* cel: everything else that begins with `$`, and the checks of invariants: CEL, with its bounds.
"""
