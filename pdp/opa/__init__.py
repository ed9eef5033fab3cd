"""The OPA program, and Rego: for projects, whose policies are compiled, and for the workbench.

program:    which version, where it is found, how it is run
install:    download and check the official release
local:      an OPA server for as long as it is needed
tool:       OPA as parser, checker and compiler; its errors as faults of the user's files
evaluation: many requests in one run of `opa eval`, with modules exchanged
modules:    the Rego files of a policy, found in folders
rules:      where each finding's rule stands, read from METADATA without OPA
syntax:     syntax trees: places, variables
admission:  which Rego is admitted: packages, concerns, and the conventions of `policies/checks`
names:      what a user's concern may name: the request, contexts and arguments of tools, the data
build:      from policies, data and manifests to one bundle; compiled policies are stored
"""
