"""The adapters' targets: each needs its framework, so that an environment has some of them."""

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
"""Each adapter, and the package without which its tests are not collected."""


def is_installed(adapter: str) -> bool:
    """Whether its framework is here."""
    try:
        return find_spec(ADAPTERS[adapter]) is not None
    except ModuleNotFoundError:
        return False


def adapters_here() -> list[str]:
    """The adapters whose targets can be opened here."""
    return [name for name in ADAPTERS if (ROOT / f"tests/adapters/{name}/target.py").exists() and is_installed(name)]


def adapter_target(adapter: str) -> Target:
    """Its target."""
    target: Target = import_module(f"tests.adapters.{adapter}.target").TARGET
    return target


def row_of(adapter: str) -> str:
    """The first cell of its row."""
    return f"{adapter_target(adapter).name}, `pdp.adapters.{adapter}`"
