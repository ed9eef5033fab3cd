"""Metrics, logs with request ids, traces that continue the caller's."""
