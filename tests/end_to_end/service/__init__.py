"""The decision service as strangers use it."""
