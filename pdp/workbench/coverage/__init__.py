"""What scenarios reach.

coverage: lines, reason codes and verdicts that scenarios reach, and what the release gate misses.
"""
