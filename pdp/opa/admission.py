"""The requirements for Rego: packages, the form of a user's concern, and the conventions.

The baseline's modules are in packages under `authz`. A user's modules must be `package custom.concerns.NAME`, because
modules in other packages could change the baseline, or would have no effect. The conventions are in `policies/checks`.
"""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.opa.evaluation import Evaluator
from pdp.opa.modules import Module, baseline_folder, baseline_policies_path, collect
from pdp.opa.names import KnownNames
from pdp.opa.rules import PARTS
from pdp.opa.syntax import package_of, parse_modules
from pdp.opa.tool import OpaTool

# Reason codes of the program and the policies start with these names, so no concern may have them. The names of the
# baseline's concerns are checked separately.
RESERVED: Final = frozenset((
    "access", "action_staging", "actions", "aggregation", "approval", "approval_request", "approvals", "audit", "authz",
    "bundle", "calls", "classify", "commit", "composition", "contract", "conversion", "custom", "decision", "engine",
    "evidence", "extraction", "gateway", "hook", "idempotency", "lookup", "loop", "manifest", "obligations", "opa",
    "patterns", "pdp", "pep", "planning", "reason", "run", "search", "service", "session", "store", "token", "tool",
    "validation",
))  # fmt: skip
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_USER_PACKAGE: Final = "a custom module must be `package custom.concerns.NAME`"
_NAME_IT: Final = "give each concern its own package, with a name that the baseline does not use"
_BE_A_SET: Final = "the decision reads only sets of reasons"
_NO_TEST: Final = "bundles leave out files whose names end in `_test.rego`: rename the file, or the rule"
_FINDINGS: Final = "data.checks.findings"
_STAND_APART: Final = "put your own modules into a folder of your own"


@dataclass(frozen=True, slots=True)
class StagedPolicies:
    """Policies in a folder where `tool` checks and compiles them. `modules` has no unit tests (`..._test.rego`)."""

    modules: Mapping[str, Module]
    trees: Mapping[str, Any]
    unit_tests: Mapping[str, Module]
    request: dict[str, Any]
    names: KnownNames
    opa: Path
    tool: OpaTool

    def of(self, *, custom: bool) -> dict[str, Module]:
        """Return the user's modules if `custom` is true, else the baseline's modules."""
        return {path: module for path, module in self.modules.items() if module.custom == custom}

    def concerns(self, *, custom: bool) -> set[str]:
        """Return the names of the user's concerns if `custom` is true, else the names of the baseline's concerns."""
        packages = (_package(self.trees[path]) for path in self.of(custom=custom))
        return {package[2] for package in packages if package[1:2] == ["concerns"] and package[2:]}

    def faults(
        self, checked: Mapping[str, Module], *, proven: bool = False, scenario_codes: Iterable[str] | None = None
    ) -> Iterator[Sequence[Fault]]:
        """Yield the faults of each check: packages, unit tests, OPA's strict check, conventions of `checked` modules.

        With `proven`, each concern needs a unit test. With `scenario_codes`, which are the codes that scenarios expect,
        each concern needs a scenario. Raises `FileFaultsError` if a unit test is not Rego.
        """
        yield _package_faults(self.modules, self.trees, self.concerns(custom=False))
        tests = {path: module for path, module in self.unit_tests.items() if proven or module.custom}
        test_trees = parse_modules(self.opa, tests)
        yield _unit_test_faults(tests, test_trees)
        try:
            self.tool.check(self.request, self.names.schemas(self.request))
        except FileFaultsError as error:
            files = {str(module.file) for module in checked.values()}
            yield [fault for fault in error.faults if fault.place.file in files] or error.faults
        yield self._conventions(checked, test_trees if proven else None, scenario_codes) if checked else []

    def _conventions(
        self, checked: Mapping[str, Module], tests: Mapping[str, Any] | None, scenario_codes: Iterable[str] | None
    ) -> list[Fault]:
        """Return the faults that the Rego checks in the baseline's folder `checks` find, sorted by location."""
        policies = baseline_policies_path()
        document = {
            "modules": [
                {"file": path, "source": str(module.file), "tree": self.trees[path]} for path, module in checked.items()
            ],
            "builtins": _builtins(policies / "capabilities.json"),
            "tests": None if tests is None else [{"tree": tree} for tree in tests.values()],
            "scenario_codes": None if scenario_codes is None else sorted(set(scenario_codes)),
            "records": self.names.records(self.request),
            "values": self.names.values(),
            "integers": self.names.integers(),
            "rules": sorted(
                {
                    f"data.{package_of(tree)}.{_name(rule)}"
                    for tree in self.trees.values()
                    for rule in tree.get("rules", ())
                }
            ),
        }
        checks = {
            str(file.relative_to(policies)): file.read_text(encoding="utf-8")
            for file in (policies / "checks").rglob("*.rego")
            if not file.name.endswith("_test.rego")
        }
        if not checks:
            raise UsageError(f"{policies / 'checks'}: no policy checks found", hint="install tool-pdp again")
        with Evaluator(self.opa, checks, {}) as evaluator:
            # The standard parser is used, because orjson rejects integers of more than 64 bits, which Rego allows.
            answer = evaluator.query(_FINDINGS, json.dumps(document).encode(), "--strict-builtin-errors")
        findings = answer["result"][0]["expressions"][0]["value"]
        faults = [
            _fault_at(checked[item["file"]], item["line"], item["column"], item["message"], item["hint"])
            for item in findings
        ]
        return sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column, fault.message))


@contextmanager
def staged_policies(policies: Sequence[Path], opa: Path, *, names: KnownNames) -> Iterator[StagedPolicies]:
    """Parse the policies of the baseline and the user, and copy them to a temporary folder until the block ends.

    Raises `FileFaultsError` if a module is not Rego, `UsageError` if a folder cannot be used or OPA cannot be run.
    """
    baseline = baseline_folder(policies)
    modules = collect(baseline, policies)
    unit_tests = collect(baseline, policies, tests=True)
    with tempfile.TemporaryDirectory(prefix="pdp-policies-") as temporary:
        capabilities = (baseline / "capabilities.json").resolve()
        tool = OpaTool(opa, Path(temporary, "policies"), modules, capabilities=capabilities)
        trees = parse_modules(opa, modules)
        # The request schema always comes from the baseline and not from the given policies, because the enforcement
        # point defines the request.
        request = orjson.loads((baseline_policies_path() / "schemas/request.json").read_bytes())
        yield StagedPolicies(modules, trees, unit_tests, request, names, opa, tool)


def _package_faults(modules: Mapping[str, Module], trees: Mapping[str, Any], baseline: set[str]) -> list[Fault]:
    """Return faults for modules in a wrong package, rules that are not partial sets, and concerns without findings."""
    concerns: defaultdict[str, list[str]] = defaultdict(list)
    faults: list[Fault] = []
    for path, tree in trees.items():
        package = _package(tree)
        if not modules[path].custom:
            if package[:1] != ["authz"]:
                message = (
                    f"`package {'.'.join(package)}` is not allowed in the baseline, only `package authz` and below"
                )
                faults.append(_fault(modules[path], tree["package"], message, _STAND_APART))
        elif wrong := _misplaced(package, baseline):
            faults.append(_fault(modules[path], tree["package"], wrong, _NAME_IT))
        else:
            concerns[package[2]].append(path)
            for rule in _findings(tree):
                if not _is_partial_set(rule):
                    name = _name(rule)
                    message = f"`{name}` of a concern must be a partial set: `{name} contains … if {{ … }}`"
                    faults.append(_fault(modules[path], rule, message, _BE_A_SET))
    for name, paths in concerns.items():
        if not any(_findings(trees[path]) for path in paths):
            message, first = f"the concern custom.concerns.{name} defines no finding", min(paths)
            hint = f"define one of {', '.join(PARTS)}"
            faults.append(_fault(modules[first], trees[first]["package"], message, hint))
    return faults


def _unit_test_faults(modules: Mapping[str, Module], trees: Mapping[str, Any]) -> list[Fault]:
    """Return faults for findings that a user's unit tests define. Bundles omit unit tests, so denials would be lost."""
    return [
        _fault(module, rule, f"`{_name(rule)}` is defined in a unit test, which bundles leave out", _NO_TEST)
        for path, module in modules.items()
        if module.custom
        for rule in _findings(trees[path])
    ]


def _builtins(capabilities: Path) -> dict[str, Any]:
    """Return the builtins that policies may call, by name, with the types of their arguments and results."""
    listed = orjson.loads(capabilities.read_bytes())["builtins"]
    return {
        builtin["name"]: {"args": builtin["decl"].get("args", []), "result": builtin["decl"].get("result", {})}
        for builtin in listed
    }


def _misplaced(package: Sequence[str], baseline: set[str]) -> str | None:
    shown = ".".join(package)
    if list(package[:2]) != ["custom", "concerns"] or len(package) != len(("custom", "concerns", "NAME")):
        return f"{_USER_PACKAGE}, not `package {shown}`"
    name = package[2]
    if not _NAME.fullmatch(name):
        return f"{_USER_PACKAGE} with a name of lower-case letters, digits and `_`, not {name!r}"
    if name in baseline:
        return f"the baseline has a concern named {name}: reason codes would be ambiguous"
    if name in RESERVED:
        return f"the name {name} is reserved: reason codes would be ambiguous"
    return None


def _is_partial_set(rule: Mapping[str, Any]) -> bool:
    head = rule["head"]
    return len(head["ref"]) == 1 and "key" in head and not head.keys() & {"value", "args"}


def _findings(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of a module that define a finding, such as `deny`."""
    return [rule for rule in tree.get("rules", ()) if _name(rule) in PARTS]


def _name(rule: Mapping[str, Any]) -> str:
    return str(rule["head"]["ref"][0]["value"])


def _package(tree: Mapping[str, Any]) -> list[str]:
    return [str(term["value"]) for term in tree["package"]["path"][1:]]


def _fault(module: Module, node: Mapping[str, Any], message: str, hint: str) -> Fault:
    return _fault_at(module, node["location"]["row"], node["location"]["col"], message, hint)


def _fault_at(module: Module, line: int, column: int, message: str, hint: str) -> Fault:
    return Fault(Place(str(module.file), line, column), message, hint=hint, source=module.text.split("\n")[line - 1])
