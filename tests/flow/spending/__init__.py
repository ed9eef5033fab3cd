"""Cumulative limits: what a call takes of its budgets, in one process and between several."""
