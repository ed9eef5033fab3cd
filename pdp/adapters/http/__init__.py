"""HTTP requests as tool calls, for asgi.py.

- request.py: finds the tool of a request, reads its arguments, writes the request with the decided arguments
- response.py: buffers the application's response, and sends problem details
"""
