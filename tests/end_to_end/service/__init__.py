"""Tests of the decision service as its users run it."""
