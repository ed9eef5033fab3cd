"""The OPA program, and Rego as it is written: for authors, CI and reviewers.

program:    which version, where it is found, how it is run
install:    the official release, downloaded and checked
local:      an OPA server for as long as it is needed
tool:       OPA as parser, checker and compiler; its errors as faults of the user's files
evaluation: many requests in one run of `opa eval`, with modules exchanged
modules:    the Rego files of a policy, found in folders
rules:      where each finding's rule stands, read from METADATA without OPA
syntax:     syntax trees: places, variables
edits:      edits that break a module in one place each
forms:      rules of two policies without what has no meaning, names among it
"""
