"""The agent loop of the tool layer document: a model proposes tool calls until the model answers with text.

agent_loop: `AgentLoop`, and the messages between the loop and a model
"""

from pdp.loop.agent_loop import AgentLoop as AgentLoop
from pdp.loop.agent_loop import ModelRequest as ModelRequest
from pdp.loop.agent_loop import Role as Role
from pdp.loop.agent_loop import Turn as Turn
from pdp.model_calls import ToolCall as ToolCall
