"""Hooks as tests use them: processes."""
