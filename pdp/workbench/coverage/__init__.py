"""What scenarios reach.

coverage: reason codes and verdicts that scenarios reach, and what the release gate misses.
line_coverage: the lines of Rego that the scenarios' requests evaluate.
"""
