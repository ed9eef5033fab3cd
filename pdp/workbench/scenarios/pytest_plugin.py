"""The settings of the pytest plugin; see docs/how-to/test-in-ci.md. Without a setting, the plugin imports nothing.

pytest loads this module wherever the package is installed, so the plugin's own code is in `pytest_scenarios`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import pytest

SETTINGS: Final[dict[str, tuple[Literal["string", "bool"], str]]] = {
    "pdp_engine": ("string", "the engine that decides: embedded (the default), sidecar or both"),
    "pdp_engine_timeout": ("string", "seconds that an engine has for one answer; 10 by default"),
    "pdp_scenarios": ("bool", "whether scenario files are collected; true by default"),
    "pdp_project": ("string", "the project file of the fixtures pep, decide and opa_server, such as pdp.yaml"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's command-line options and configuration settings."""
    group = parser.getgroup("pdp", "scenarios of tool-pdp")
    group.addoption("--pdp-engine", metavar="ENGINE", help="embedded, sidecar, or both with equal decisions.")
    group.addoption("--pdp-engine-timeout", metavar="SECONDS", help="How long an engine may take for one answer.")
    group.addoption("--no-pdp-scenarios", action="store_true", help="Do not collect scenario files.")
    for name, (type_, text) in SETTINGS.items():
        parser.addini(name, text, type=type_, default=None)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if the configuration or the command line has one of its settings."""
    if config.getoption("pdp_engine") or any(config.getini(name) is not None for name in SETTINGS):
        config.pluginmanager.register(import_module("pdp.workbench.scenarios.pytest_scenarios"), "pdp_scenarios")
