"""Tools of type `cli`: what their command line is, and which programs they may run.

* argv: one item of a command line's template, and the template held against the schema of the arguments.
* allow_list: the template held against the program's entry in the governance file; where the program is.
"""
