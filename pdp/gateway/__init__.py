"""A proxy in front of MCP servers. An enforcement point decides every call, resource and prompt.

- config.py: the file that names the servers, or the server on a command line
- upstream.py: connections to the servers, and the client's request behind each message
- pins.py: reviewed tool declarations, compared with the present declarations of the servers
- server.py: serves lists, calls, resources and prompts to clients
- pending.py: informs clients about calls that wait for approval
- methods.py: AuthZEN's mapping of MCP methods, and methods that the mapping lacks
- principal.py: the identity of clients
"""
