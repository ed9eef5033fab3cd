"""What policy authors, CI and reviewers use; no application imports it.

A file of the user's that cannot be used is a UsageError everywhere, with FileFaultsError for all faults of it at once.
What compiles or reads a bundle raises BundleError as well, and what asks an engine EngineError. "Raises" stands where
there is more to say.

engines     names and time limits of the engines that scenarios run on
shown_file  how files, lines and texts are shown in reports
rego_edits  edits that break a module of Rego in one place each
rego_forms  rules of two policies without what has no meaning, names among it
bundles     a folder: sign, publish and inspect bundles
explain     a folder: why a call is decided as it is
scenarios   a folder: scenarios read, run and reported; the pytest plugin
neighbours  a folder: requests near a request that is known
coverage    what scenarios reach
doctor      what cannot work in a project
mutation    a folder: what no scenario would notice
diff        a folder: what a new bundle changes
gate        a folder: whether a bundle may be released
"""
