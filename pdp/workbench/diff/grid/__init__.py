"""Requests that nobody wrote down, made of manifests, schemas, data and constants in Rego. The same in every run."""
