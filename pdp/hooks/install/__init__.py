"""A client's own configuration: our hook put in, taken out again to the byte, and proved to hold.

- clients.py: the clients: where their configuration lies, and what a hook of ours is in it
- installation.py: what would become of a file, then the change; what was there is stored first
- check.py: whether a call that must be denied is denied, by the settings that count in a folder
"""
