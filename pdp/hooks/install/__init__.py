"""Change the configuration of a client: install the hook, check that the hook works, and remove all traces of the hook.

- clients.py: the clients, their configuration files, and the settings of the hook
- installation.py: plans and makes the change of a file, after storing the original
- check.py: checks that no setting disables the hook in a folder, and that the hook denies a call
"""
