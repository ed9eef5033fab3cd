"""The agent loop of the tool layer document: a model uses the tools of an enforcement point until it answers in words.

* agent_loop: `AgentLoop`
* messages: what goes between a loop and a model
"""
