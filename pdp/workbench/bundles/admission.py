"""Which Rego is admitted: every module in its package, a user's as a concern, and by the conventions.

The baseline's modules are packages under `authz`. A user's are all `package custom.concerns.NAME`: they could otherwise
join a package of the baseline, or be overlooked by the decision, which finds concerns by their path. Conventions are
those of `policies/checks`, which is Rego about Rego.
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
from pdp.workbench.bundles.names import KnownNames
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.modules import Module, baseline_folder, baseline_policies_path, collect
from pdp.workbench.opa.rules import PARTS
from pdp.workbench.opa.syntax import package_of, parse_modules
from pdp.workbench.opa.tool import OpaTool

# First parts of codes that the program or the policies give elsewhere; a baseline with a concern says so itself.
_TAKEN: Final = frozenset((
    "access", "action_staging", "actions", "aggregation", "approval", "approval_request", "approvals", "audit", "authz",
    "bundle", "calls", "classify", "commit", "composition", "contract", "conversion", "custom", "decision", "engine",
    "evidence", "extraction", "gateway", "hook", "idempotency", "lookup", "loop", "manifest", "obligations", "opa",
    "patterns", "pdp", "pep", "planning", "reason", "run", "search", "service", "session", "store", "token", "tool",
    "validation",
))  # fmt: skip
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
class StagedPolicies:
    """Policies where `tool` checks and compiles them.

    Attributes:
        modules: by their path, without unit tests; trees: their syntax trees, likewise.
        unit_tests: the modules `..._test.rego`, by their path.
        names: what the user's concerns may name.
    """

    modules: Mapping[str, Module]
    trees: Mapping[str, Any]
    unit_tests: Mapping[str, Module]
    request: dict[str, Any]
    names: KnownNames
    opa: Path
    tool: OpaTool

    def of(self, *, custom: bool) -> dict[str, Module]:
        """Return the user's modules, or the baseline's."""
        return {path: module for path, module in self.modules.items() if module.custom == custom}

    def concerns(self, *, custom: bool) -> set[str]:
        """Return the names of the user's concerns, or of the baseline's."""
        packages = (_package(self.trees[path]) for path in self.of(custom=custom))
        return {package[2] for package in packages if package[1:2] == ["concerns"] and package[2:]}

    def faults(
        self, checked: Mapping[str, Module], *, proven: bool = False, scenario_codes: Iterable[str] | None = None
    ) -> Iterator[Sequence[Fault]]:
        """Yield the faults of each stage: packages, unit tests, OPA's strict check, conventions.

        Args:
            checked: the modules that are held to the conventions. What one of them does wrong, OPA may find in others
                as well: those faults are left out then.
            proven: whether a concern without a unit test is a fault.
            scenario_codes: the reason codes that scenarios expect, to find concerns without any; None: nobody asks.

        FileFaultsError: a unit test that is not Rego.
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
        """Return what the checks of the baseline's folder `checks` object to, in the order of places."""
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
            raise UsageError(f"{policies / 'checks'}: no checks of policies", hint="install tool-pdp again")
        with Evaluator(self.opa, checks, {}) as evaluator:
            # orjson refuses integers of more than 64 bits, which Rego may have.
            answer = evaluator.query(_FINDINGS, json.dumps(document).encode(), "--strict-builtin-errors")
        findings = answer["result"][0]["expressions"][0]["value"]
        faults = [
            _fault_at(checked[item["file"]], item["line"], item["column"], item["message"], item["hint"])
            for item in findings
        ]
        return sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column, fault.message))


@contextmanager
def staged_policies(policies: Sequence[Path], opa: Path, *, names: KnownNames) -> Iterator[StagedPolicies]:
    """Collect and parse the policies of the baseline's folder and the user's; stage them until the block ends.

    Raises:
        UsageError: a folder cannot be used, or OPA cannot be run.
        FileFaultsError: a module that is not Rego.
    """
    baseline = baseline_folder(policies)
    modules = collect(baseline, policies)
    unit_tests = collect(baseline, policies, tests=True)
    with tempfile.TemporaryDirectory(prefix="pdp-policies-") as temporary:
        capabilities = (baseline / "capabilities.json").resolve()
        tool = OpaTool(opa, Path(temporary, "policies"), modules, capabilities=capabilities)
        trees = parse_modules(opa, modules)
        # What a request is, the enforcement point says, whatever the policies are.
        request = orjson.loads((baseline_policies_path() / "schemas/request.json").read_bytes())
        yield StagedPolicies(modules, trees, unit_tests, request, names, opa, tool)


def _package_faults(modules: Mapping[str, Module], trees: Mapping[str, Any], baseline: set[str]) -> list[Fault]:
    """Each module that is not in its package, and each concern that defines what it may not, or nothing."""
    concerns: defaultdict[str, list[str]] = defaultdict(list)
    faults: list[Fault] = []
    for path, tree in trees.items():
        package = _package(tree)
        if not modules[path].custom:
            if package[:1] != ["authz"]:
                message = f"`package {'.'.join(package)}` in the baseline, which is `package authz` and below"
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
            message, first = f"the concern custom.concerns.{name} defines nothing", min(paths)
            hint = f"it needs one of {', '.join(PARTS)}"
            faults.append(_fault(modules[first], trees[first]["package"], message, hint))
    return faults


def _unit_test_faults(modules: Mapping[str, Module], trees: Mapping[str, Any]) -> list[Fault]:
    """A user's unit test must not say what a concern says: it would be left out, and its denials with it."""
    return [
        _fault(module, rule, f"`{_name(rule)}` in a unit test, which would be lost", _NO_TEST)
        for path, module in modules.items()
        if module.custom
        for rule in _findings(trees[path])
    ]


def _builtins(capabilities: Path) -> dict[str, Any]:
    """What policies may call, by name: the types of arguments and result."""
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
        return f"{_USER_PACKAGE} with a name of small letters, digits and `_`, not {name!r}"
    if name in baseline:
        return f"the baseline has a concern {name}: reason codes would not say whose they are"
    if name in _TAKEN:
        return f"codes that begin with `{name}.` are not a user's: reason codes would not say whose they are"
    return None


def _is_partial_set(rule: Mapping[str, Any]) -> bool:
    head = rule["head"]
    return len(head["ref"]) == 1 and "key" in head and not head.keys() & {"value", "args"}


def _findings(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rules of a module that find something."""
    return [rule for rule in tree.get("rules", ()) if _name(rule) in PARTS]


def _name(rule: Mapping[str, Any]) -> str:
    return str(rule["head"]["ref"][0]["value"])


def _package(tree: Mapping[str, Any]) -> list[str]:
    return [str(term["value"]) for term in tree["package"]["path"][1:]]


def _fault(module: Module, node: Mapping[str, Any], message: str, hint: str) -> Fault:
    return _fault_at(module, node["location"]["row"], node["location"]["col"], message, hint)


def _fault_at(module: Module, line: int, column: int, message: str, hint: str) -> Fault:
    return Fault(Place(str(module.file), line, column), message, hint=hint, source=module.text.split("\n")[line - 1])
