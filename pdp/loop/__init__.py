"""The agent loop of the tool layer document, and the messages between it and a model: agent_loop.py."""
