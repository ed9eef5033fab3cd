"""Expressions in manifest fields, which are evaluated for each call.

* path: plain paths into arguments and session, which need no library
* expression: compiles the values of mappings; imported only if an entry has a mapping
* cel: all other expressions, and the checks of invariants (`compile_check`): CEL with fixed limits
"""
