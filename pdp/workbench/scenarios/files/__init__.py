"""Scenario files, from their text to a `Suite`.

scenario    the models of a file
read        one file as models, with every fault and its place
suite       a file with all that it names and extends, loaded; files found in folders
sessions    the session of each step
places      where a field of an entry or a datum stands
tools_file  the Python file with a scenario's tools
"""
