"""Helpers for tests of hooks: a simulated machine, and the processes of hooks."""
