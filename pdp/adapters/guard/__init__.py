"""Code that all adapters share: guard.py decides a call, lets the framework run the tool, and returns the outcome."""
