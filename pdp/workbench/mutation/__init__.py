"""Mutation testing: break policies, manifests and data in one place each, and run the scenarios again.

mutant: the kinds of mutants, their ids and their fates.
edits: creates the mutants of Rego, of manifests and of data.
trial: runs the scenarios with a mutant, on OPA or on the embedded engine.
equivalents: reads the file in which a person marks mutants as equivalent.
search: finds a call that a survivor decides differently.
written: writes such a call as a scenario.
run: a complete run, and its results as JSON.
report: the results as text.
"""
