"""The OPA program and Rego sources, for compiling the policies of projects and for the workbench.

program:    which version of OPA is used, and how it is found and run
install:    downloads and verifies the official release
local:      a temporary OPA server
tool:       OPA as parser, checker and compiler, with its errors as faults in the user's files
evaluation: evaluates many requests in one run of `opa eval`, with modules replaced
modules:    the Rego files of a policy, found in folders
rules:      locations of the rules that define findings, read from METADATA without OPA
syntax:     syntax trees: locations, variables
admission:  the requirements for Rego: packages, concerns, and the conventions of `policies/checks`
names:      names that a user's concern may use: the request, contexts and arguments of tools, the data
build:      compiles policies, data and manifests to one bundle, and caches compiled policies
"""
