"""Scenario files, from their text to a `Suite`.

scenario    the models of a file
read        one file as models, with every fault and its place
settings    what a file and those that it extends state
suite       a file with all that it names, loaded; files found in folders
sessions    the session of each step
tools_file  the Python file with a scenario's tools
raw_request requests that a step writes by hand
selection   which scenarios `-k` selects
"""
