"""The conventions that policies are held to, beyond what OPA asks: `policies/checks`, which is Rego about Rego."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import Fault, Place
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.tool import OpaTool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.workbench.opa.modules import Module

FINDINGS: Final = "data.checks.findings"
"""The set of what the checks object to."""


def check_conventions(
    modules: Mapping[str, Module],
    trees: Mapping[str, Any],
    opa: Path,
    *,
    tests: Mapping[str, Any] | None = None,
    scenario_codes: Iterable[str] | None = None,
) -> list[Fault]:
    """Return what the checks of the baseline's folder `checks` object to, in the order of places.

    Args:
        modules: the modules to check, by their path.
        trees: syntax trees by path, as `parse_modules` returns them; those of other modules are not looked at.
        opa: the OPA program; it is run once.
        tests: the trees of the unit tests, to find concerns without any; None: nobody asks.
        scenario_codes: the reason codes that scenarios expect, to find concerns without any; None: nobody asks.

    Raises:
        UsageError: OPA cannot be run, or the checks are not installed.
    """
    if not modules:
        return []
    policies = baseline_policies_path()
    document = {
        "modules": [
            {"file": path, "source": str(module.file), "tree": trees[path]} for path, module in modules.items()
        ],
        "builtins": _builtins(policies / "capabilities.json"),
        "tests": None if tests is None else [{"tree": tree} for tree in tests.values()],
        "scenario_codes": None if scenario_codes is None else sorted(set(scenario_codes)),
    }
    with tempfile.TemporaryDirectory(prefix="pdp-checks-") as temporary:
        file = Path(temporary, "input.json")
        file.write_bytes(orjson.dumps(document))
        findings = OpaTool(opa, policies / "checks", sources={}).evaluate(FINDINGS, file)
    faults = [_fault(modules[finding["file"]], finding) for finding in findings]
    return sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column, fault.message))


def _builtins(capabilities: Path) -> dict[str, Any]:
    """What policies may call, by name: the types of arguments and result."""
    listed = orjson.loads(capabilities.read_bytes())["builtins"]
    return {
        builtin["name"]: {"args": builtin["decl"].get("args", []), "result": builtin["decl"].get("result", {})}
        for builtin in listed
    }


def _fault(module: Module, finding: Mapping[str, Any]) -> Fault:
    line = finding["line"]
    return Fault(
        Place(str(module.file), line, finding["column"]),
        finding["message"],
        hint=finding["hint"],
        source=module.text.split("\n")[line - 1],
    )
