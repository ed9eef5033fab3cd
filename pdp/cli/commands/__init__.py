"""One module for each command, or group of commands, imported when it is run (`pdp.cli.app`).

decide     one proposal, one verdict
explain    why a proposal is decided as it is
demo       the payments story
init       a new project
test       scenarios, and what they reach
check      how concerns are written; what cannot work in a project
mutate     what no scenario would notice
manifest   a folder: lint, export, diff and import of manifests; scan
bundle     build, sign, publish and compare bundles
release    whether a bundle may go out
opa        the OPA program, and the Rego that it is given
stores     a folder: approvals, idempotency keys, the database's tables
audit      show, verify and rotate an audit stream
guard      a folder: the decision service, hooks, the gateway
"""
