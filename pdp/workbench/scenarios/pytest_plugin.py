"""The pytest plugin's settings; docs/testing.md. It does and imports nothing until a project states one of them.

pytest loads this module wherever the package is installed, so what it does stands in `pytest_scenarios`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import pytest

SETTINGS: Final[dict[str, tuple[Literal["string", "bool"], str]]] = {
    "pdp_engine": ("string", "who decides: embedded, sidecar or both; embedded if absent"),
    "pdp_engine_timeout": ("string", "seconds that an engine has for one answer; 10 if absent"),
    "pdp_scenarios": ("bool", "whether scenario files are collected; true if absent"),
    "pdp_project": ("string", "the project file of the fixtures pep, decide and opa_server, such as pdp.yaml"),
}
"""What a project may state in pytest's configuration: each setting's type, and its help."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the settings for pytest's configuration file."""
    group = parser.getgroup("pdp", "scenarios of tool-pdp")
    group.addoption("--pdp-engine", metavar="ENGINE", help="embedded, sidecar or both, which have to agree.")
    group.addoption("--pdp-engine-timeout", metavar="SECONDS", help="How long an engine may take for one answer.")
    group.addoption("--no-pdp-scenarios", action="store_true", help="Do not collect scenario files.")
    for name, (type_, text) in SETTINGS.items():
        parser.addini(name, text, type=type_, default=None)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin where the project's configuration, or the command line, states a setting of it."""
    if config.getoption("pdp_engine") or any(config.getini(name) is not None for name in SETTINGS):
        config.pluginmanager.register(import_module("pdp.workbench.scenarios.pytest_scenarios"), "pdp_scenarios")
