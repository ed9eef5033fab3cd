"""Prove properties: sentences about decisions that must hold for all requests.

file: reads `properties.yaml` and checks the Rego in it.
prove: asks the solver whether a property holds.
search: searches a call that violates a property.
"""
