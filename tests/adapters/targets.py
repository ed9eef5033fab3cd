"""The conformance target of each adapter. Each environment has only the targets for frameworks that are installed."""

from importlib import import_module
from importlib.util import find_spec
from typing import Final

from pdp.testing.conformance.target import Target
from tests.support import ROOT

ADAPTERS: Final = {
    "agent_framework": "agent_framework",
    "asgi": "fastapi",
    "claude_agent_sdk": "claude_agent_sdk",
    "crewai": "crewai",
    "fastmcp": "fastmcp",
    "google_adk": "google.adk",
    "langchain": "langchain",
    "llama_index": "llama_index",
    "mcp": "mcp",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "strands": "strands",
}
"""The package that the tests of each adapter need, by adapter."""


def is_installed(adapter: str) -> bool:
    try:
        return find_spec(ADAPTERS[adapter]) is not None
    except ModuleNotFoundError:
        return False


def adapters_here() -> list[str]:
    """Return the adapters whose framework is installed in this environment."""
    return [name for name in ADAPTERS if (ROOT / f"tests/adapters/{name}/target.py").exists() and is_installed(name)]


def adapter_target(adapter: str) -> Target:
    target: Target = import_module(f"tests.adapters.{adapter}.target").TARGET
    return target


def row_of(adapter: str) -> str:
    """Return the name of the adapter's row in the table of docs/reference/enforcement-points.yaml."""
    return f"{adapter_target(adapter).name}, `pdp.adapters.{adapter}`"
