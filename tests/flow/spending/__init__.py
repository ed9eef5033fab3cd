"""Cumulative limits on the amounts of calls, in one process and across processes."""
