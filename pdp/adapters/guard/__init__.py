"""What adapters share.

- guard.py: a call decided, run by its framework, and what the model is told of it
- outcome.py: what a call came to
"""
