"""Report a run of scenarios.

text  text for the terminal, and Markdown for a pull request comment
json  JSON for scripts, and JUnit XML for CI
html  one HTML page
"""
