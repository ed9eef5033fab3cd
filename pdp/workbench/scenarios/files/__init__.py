"""Read scenario files, from their text to a `Suite`.

scenario    the data models of a scenario file
read        read a scenario file as models, and report every fault with its location
suite       load a scenario file with all files that it names; find scenario files in folders
tools_file  load the Python file with the tools of a scenario file
"""
