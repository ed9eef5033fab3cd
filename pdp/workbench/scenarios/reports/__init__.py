"""A run of scenarios for people and programs.

text      the terminal
json      scripts
junit     CI
html      one page
markdown  a comment of a pull request
"""
