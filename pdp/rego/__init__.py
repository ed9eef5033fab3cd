"""Rego sources: found, parsed and evaluated by the OPA program, with places in the author's files."""
