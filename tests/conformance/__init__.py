"""Runs the conformance suite on every type of enforcement point. Each target has its own module."""
