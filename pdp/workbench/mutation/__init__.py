"""Who would notice if it broke: policies, manifests and data changed in one place each, and the scenarios run again.

mutant: a mutant of each kind, its identity, and its fate.
edits: the mutants of Rego, of manifest and governance entry by entry, and of the data that a suite states.
trial: the scenarios run with a mutant, on OPA or on the embedded engine.
equivalents: the file in which a person marks mutants as equivalent.
search: the search for a call that shows a survivor, and the scenario that would kill it.
run: a whole run, and its results as JSON and as plain lines.
"""
