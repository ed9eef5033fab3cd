"""Hooks of coding agents: the client asks before each call of a tool, and what gets no right answer does not run.

- ask.py: the program that a client starts for each call; the standard library alone
- resident.py: the process of one user that answers it
- home.py: the folders of the user: policy, stores, socket
- call.py: what a client asks and what it is answered, whatever its dialect
- decide.py: the answer, from an enforcement point
- translation.py: which entry of the manifest a built-in tool is, and with which arguments
- workspace.py: where a path lies: in the workspace, beyond it, in what guards it
- rules.py: the rules of a repository's own file
- shell.py: the words of a simple command, and whether git starts other programs
- dialects.py: how each client spells its calls and reads its answers
- install/: the client's own configuration: change, restore, check
- starter/: manifest, governance and lists to begin with
"""
