"""Hooks of coding agents: the client asks before each tool call, and a call without a valid answer does not run.

- ask.py: the program that a client starts for each call; it uses only the standard library
- resident.py: the process that answers all calls of one user's clients
- home.py: the user's folder with policy, store and socket
- call.py: a client's call and the answer, independent of the client's format
- decide.py: decides a client's call with an enforcement point
- translation.py: turns a client's call into a proposal for a tool of the manifest
- workspace.py: whether a path is in the workspace, outside of the workspace, or guarded
- rules.py: the rules in a repository's own file
- shapes.py: reads the shapes of commands.yaml, and compares them with the words of a command
- shell.py: parses command lines, and finds the shape of each command
- dialects.py: the formats in which each client writes calls and reads answers
- install/: changes, restores and checks the client's configuration
- starter/: the first policy files of a user
"""
