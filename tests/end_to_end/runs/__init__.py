"""Runs of the examples that strangers try to steer."""
