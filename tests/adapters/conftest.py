"""Frameworks that are not installed here: their tests run in environments of their own, by `scripts/adapters`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = {
    "agent_framework": "agent_framework",
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


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


collect_ignore = [
    str(Path(__file__).parent / name) for name, package in _PACKAGES.items() if not _is_installed(package)
]
