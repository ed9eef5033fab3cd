"""Enforcement points for agent frameworks: one module and one extra for each.

The framework runs a tool on ALLOW only, with exactly the decided arguments.

- guard/: shared code that decides a call and lets the framework run it
- http/: HTTP requests as tool calls, for asgi.py
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
- asgi.py: tools behind plain HTTP, such as the routes of a FastAPI application
"""
