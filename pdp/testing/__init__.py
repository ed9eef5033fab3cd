"""What tests of enforcement points need.

- conformance/: one suite for every way in: hooks, gateway, adapters
"""
