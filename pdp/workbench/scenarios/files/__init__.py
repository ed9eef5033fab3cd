"""Scenario files, from their text to a `Suite`.

scenario    the models of a file
read        one file as models, with every fault and its place
suite       a file with all that it names and extends, loaded, its sessions and places; files found in folders
tools_file  the Python file with a scenario's tools
"""
