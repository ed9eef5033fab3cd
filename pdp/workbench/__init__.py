"""Tools for policy authors, CI and reviewers; applications do not import them.

Every function may raise `UsageError` for an argument or a file that cannot be used, and `FileFaultsError` with all
faults of a file. Functions that compile or read a bundle raise `BundleError`; functions that query an engine raise
`EngineError`. If an engine times out (`EngineTimeoutError`), the result is unknown. Docstrings name all other errors.

engines     names and time limits of the engines that scenarios run on
shown_file  format file names, line numbers and text for reports
playground  decide one call with an edited manifest entry and an edited concern
rego_edits  edits that each break one place of a Rego module
rego_forms  canonical forms of rules, to compare two policies
bundles     a folder: sign, publish and inspect bundles
explain     a folder: explain a decision
scenarios   a folder: read, run and report scenarios; the pytest plugin
neighbours  a folder: generate requests that differ little from a known request
coverage    measure which lines, reason codes and verdicts the scenarios reach
codes       list all codes that users meet, with their texts
doctor      find what cannot work in a project
mutation    a folder: find changes of a policy that no scenario detects
proof       a folder: translate policies to formulas and ask a solver
properties  a folder: prove sentences about decisions
diff        a folder: compare two bundles
replay      decide recorded requests again, also with another bundle
proof       a folder: prove that two versions of the policies decide alike
gate        a folder: decide whether a bundle may be released
"""
