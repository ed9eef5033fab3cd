"""A run of scenarios for people and programs.

text  the terminal, and Markdown for a comment of a pull request
json  scripts, and JUnit's XML for CI
html  one page
"""
