"""Requests over HTTP as calls of tools, for asgi.py.

- routes.py: which tool a method and path stand for
- request.py: a request's arguments, and the request of decided arguments
- response.py: an application's response, held back; and problems
"""
