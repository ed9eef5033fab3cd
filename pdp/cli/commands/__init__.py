"""One module for each command or group of commands, imported when it runs (`pdp.cli.app`).

decide     decide one proposal
explain    explain the decision on a proposal, or a code
demo       the payments example
init       create a project
test       run scenarios and measure coverage
check      check how concerns are written; `pdp doctor` finds faults of a project
mutate     find changes that no scenario detects
prove      prove properties of the policy
manifest   a folder: lint, export, compare and import manifests; scan for tools; print schemas
bundle     build, sign, publish and compare bundles
release    check whether a bundle may be released
opa        find, install and query OPA
stores     a folder: approvals, grants, idempotency keys, budgets, tables, tokens
audit      show, verify and rotate an audit stream
guard      a folder: the decision service, hooks, the gateway
"""
