"""A proxy in front of MCP servers: every call, resource and prompt goes through an enforcement point.

- config.py: the file that names the servers; one server of a command line
- upstream.py: the connections to the servers, and the request of a client that each question is for
- pins.py: what a server declares of its tools, and whether it is what was reviewed
- server.py: what a client is served: lists, calls, resources, prompts
- pending.py: how a client hears of a call that waits for a person
- methods.py: AuthZEN's mapping of MCP, and the methods that it does not know
- principal.py: who the client is
"""
