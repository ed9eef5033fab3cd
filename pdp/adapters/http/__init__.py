"""Requests over HTTP as calls of tools, for asgi.py.

- request.py: the tool of a method and path, its arguments, the request of decided arguments
- response.py: an application's response, held back; and problems
"""
