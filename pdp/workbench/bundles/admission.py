"""Which Rego is admitted: every module in its package, a user's as a concern, and by the conventions.

The baseline's modules are packages under `authz`. A user's are all `package custom.concerns.NAME`: they could otherwise
join a package of the baseline, or be overlooked by the decision, which finds concerns by their path. Conventions are
those of `policies/checks`, which is Rego about Rego.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import Fault, FileFaultsError, Place
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.tool import OpaTool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdp.workbench.opa.modules import Module

_PARTS: Final = ("deny", "step_up", "allow", "obligations")
# Who else gives codes, or names like them, by their first part. A baseline with a concern of that name says so itself.
_TAKEN: Final = {
    "authz": "the baseline",
    "custom": "users' concerns together",
    "decision": "the decision itself",
    "planning": "the decision on plans",
    "reason": "rules without a code of their own",
    **dict.fromkeys(
        ("actions", "approval", "approvals", "audit", "bundle", "contract", "engine", "idempotency", "manifest"),
        "the enforcement point",
    ),
    **dict.fromkeys(("obligations", "pdp", "pep", "run", "session", "store", "tool"), "the enforcement point"),
    **dict.fromkeys(("loop", "opa"), "the program"),
    **dict.fromkeys(
        (
            "action_staging", "aggregation", "approval_request", "classify", "commit", "composition", "conversion",
            "evidence", "extraction", "lookup", "patterns", "search", "validation",
        ),
        "the tool patterns",
    ),
}  # fmt: skip
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_USER_PACKAGE: Final = "a custom module must be `package custom.concerns.NAME`"
_NAME_IT: Final = "the decision finds concerns by their path: one package each, and no name of the baseline"
_BE_A_SET: Final = "the decision collects reasons from sets, and would misread anything else"
_NO_TEST: Final = (
    "a file whose name ends in `_test.rego` is left out of bundles: name the file otherwise, or the rule if it is a "
    "test's own"
)
_FINDINGS: Final = "data.checks.findings"
_STAND_APART: Final = "a module of your own stands in a folder of your own"


@dataclass(frozen=True, slots=True)
class Concerns:
    """The names of the concerns in a bundle, sorted."""

    baseline: tuple[str, ...]
    custom: tuple[str, ...]


def check_packages(modules: Mapping[str, Module], trees: Mapping[str, Any]) -> Concerns:
    """Hold every module to its package, and the user's to what a concern may define.

    Args:
        modules: the modules by their path.
        trees: their syntax trees, as `parse_modules` returns them.

    Raises:
        FileFaultsError: each module or rule that is not admitted, and each concern that defines nothing, by name and
            place.
    """
    baseline: set[str] = set()
    custom: dict[str, dict[str, set[str]]] = {}
    faults: list[Fault] = []
    for path, tree in trees.items():
        if modules[path].custom:
            continue
        package = _package(tree)
        if package[:1] != ["authz"]:
            message = f"`package {'.'.join(package)}` in the baseline, which is `package authz` and below"
            faults.append(_fault(modules[path], tree["package"], message, _STAND_APART))
        elif package[1:2] == ["concerns"]:
            baseline.update(package[2:3])
    for path, tree in trees.items():
        if modules[path].custom:
            faults += _custom_faults(path, modules[path], tree, baseline, custom)
    for name, defined in custom.items():
        if not any(defined.values()):
            first = min(defined)
            message = f"the concern custom.concerns.{name} defines nothing"
            faults.append(
                _fault(modules[first], trees[first]["package"], message, f"it needs one of {', '.join(_PARTS)}")
            )
    if faults:
        raise FileFaultsError(faults)
    return Concerns(tuple(sorted(baseline)), tuple(sorted(custom)))


def check_unit_tests(modules: Mapping[str, Module], trees: Mapping[str, Any]) -> None:
    """Refuse a user's unit test that says what a concern says: it would be left out, and its denials with it.

    Args:
        modules: the unit tests (`..._test.rego`) by their path; the baseline's are not looked at.
        trees: their syntax trees, as `parse_modules` returns them; those of other modules may be among them.

    Raises:
        FileFaultsError: each rule with the name of a concern's part, by place.
    """
    faults = [
        _fault(module, rule, f"`{_name(rule)}` in a unit test, which would be lost", _NO_TEST)
        for path, module in modules.items()
        if module.custom
        for rule in trees[path].get("rules", ())
        if _name(rule) in _PARTS
    ]
    if faults:
        raise FileFaultsError(faults)


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
        findings = OpaTool(opa, policies / "checks", sources={}).evaluate(_FINDINGS, file)
    faults = [
        _fault_at(modules[item["file"]], item["line"], item["column"], item["message"], item["hint"])
        for item in findings
    ]
    return sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column, fault.message))


def _builtins(capabilities: Path) -> dict[str, Any]:
    """What policies may call, by name: the types of arguments and result."""
    listed = orjson.loads(capabilities.read_bytes())["builtins"]
    return {
        builtin["name"]: {"args": builtin["decl"].get("args", []), "result": builtin["decl"].get("result", {})}
        for builtin in listed
    }


def _custom_faults(
    path: str, module: Module, tree: Mapping[str, Any], baseline: set[str], custom: dict[str, dict[str, set[str]]]
) -> list[Fault]:
    """What a user's module does that it must not; which parts it defines is added to `custom`, by concern and path."""
    package = _package(tree)
    wrong = _misplaced(package, baseline)
    if wrong:
        return [_fault(module, tree["package"], wrong, _NAME_IT)]
    faults = []
    defined = custom.setdefault(package[2], {}).setdefault(path, set())
    for rule in tree.get("rules", ()):
        name = _name(rule)
        if name in _PARTS:
            defined.add(name)
            if not _is_partial_set(rule):
                message = f"`{name}` of a concern must be a partial set: `{name} contains … if {{ … }}`"
                faults.append(_fault(module, rule, message, _BE_A_SET))
    return faults


def _misplaced(package: Sequence[str], baseline: set[str]) -> str | None:
    shown = ".".join(package)
    if list(package[:2]) != ["custom", "concerns"] or len(package) != len(("custom", "concerns", "NAME")):
        return f"{_USER_PACKAGE}, not `package {shown}`"
    name = package[2]
    if not _NAME.fullmatch(name):
        return f"{_USER_PACKAGE} with a name of small letters, digits and `_`, not {name!r}"
    if name in baseline:
        return f"the baseline has a concern {name}: reason codes would not say whose they are"
    if name in _TAKEN:
        return f"codes that begin with `{name}.` are given by {_TAKEN[name]}: reason codes would not say whose they are"
    return None


def _is_partial_set(rule: Mapping[str, Any]) -> bool:
    head = rule["head"]
    return len(head["ref"]) == 1 and "key" in head and not head.keys() & {"value", "args"}


def _name(rule: Mapping[str, Any]) -> str:
    return str(rule["head"]["ref"][0]["value"])


def _package(tree: Mapping[str, Any]) -> list[str]:
    return [str(term["value"]) for term in tree["package"]["path"][1:]]


def _fault(module: Module, node: Mapping[str, Any], message: str, hint: str) -> Fault:
    return _fault_at(module, node["location"]["row"], node["location"]["col"], message, hint)


def _fault_at(module: Module, line: int, column: int, message: str, hint: str) -> Fault:
    return Fault(Place(str(module.file), line, column), message, hint=hint, source=module.text.split("\n")[line - 1])
