"""What policy authors, CI and reviewers use; no application imports it.

A file of the user's that cannot be used is a UsageError everywhere, with FileFaultsError for all faults of it at once.
What compiles or reads a bundle raises BundleError as well, and what asks an engine EngineError. "Raises" stands where
there is more to say.

engines     what engines decide by, compiled once, and which of them `--engine` names
opa         a folder: the OPA program, and Rego as it parses it
bundles     a folder: build, check, sign, publish and inspect bundles
reports     a folder: what reports share
explain     a folder: why a call is decided as it is
scenarios   a folder: scenarios read, run and reported; the pytest plugin
neighbours  a folder: requests near a request that is known
coverage    a folder: what scenarios reach
doctor      what cannot work in a project
mutation    a folder: what no scenario would notice
diff        a folder: what a new bundle changes
gate        a folder: whether a bundle may be released
"""
