"""A tool's contract: what is checked before any policy is asked."""
