"""Enforcement points for the frameworks that agents are written in: a module and an extra each, and two lines to use.

Each lets its framework run a tool on ALLOW alone, with exactly the decided arguments; docs/adapters.md.

- guard/: what they share: a call decided, and run by the framework
- http/: requests over HTTP as calls, for asgi.py
- langchain.py: LangChain and LangGraph
- openai_agents.py: the OpenAI Agents SDK
- pydantic_ai.py: Pydantic AI
- google_adk.py: Google's Agent Development Kit
- agent_framework.py: Microsoft's Agent Framework
- strands.py: Strands Agents
- claude_agent_sdk.py: the Claude Agent SDK
- crewai.py: CrewAI
- llama_index.py: LlamaIndex
- fastmcp.py: FastMCP servers
- mcp.py: servers of the MCP SDK
- asgi.py: tools behind plain HTTP, such as those of a FastAPI application
"""
