"""What adapters share: guard.py decides a call, lets its framework run it, and says what the model is told."""
