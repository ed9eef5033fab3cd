"""Who may write what where: every module is held to its package, and a user's to what a concern may define.

The baseline's modules are packages under `authz`. A user's are all `package custom.concerns.NAME`: they could otherwise
join a package of the baseline, or be overlooked by the decision, which finds concerns by their path.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import Fault, FileFaultsError, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.rego.modules import Module
    from pdp.rego.opa_tool import OpaTool

_PARTS: Final = ("deny", "step_up", "allow", "obligations")
# Who else gives reason codes, by their first part (pdp/errors.py, and docs/architecture.md).
_TAKEN: Final = {
    "decision": "the decision itself",
    "planning": "the decision on plans",
    **dict.fromkeys(("audit", "bundle", "engine", "obligations", "pep"), "the enforcement point"),
}
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_USER_PACKAGE: Final = "a custom module must be `package custom.concerns.NAME`"
_NAME_IT: Final = "the decision finds concerns by their path: one package each, and no name of the baseline"
_BE_A_SET: Final = "the decision collects reasons from sets, and would misread anything else"
_ASK_LESS: Final = (
    "the request is in `input`, what may be shared in `data.authz.lib`, data of your own in `data.settings`"
)
_ROOT: Final = len(("data", "authz"))
_OPEN: Final = (["lib"], ["concerns"])
_STAND_APART: Final = "a module of your own stands in a folder of your own"


@dataclass(frozen=True, slots=True)
class Concerns:
    """The names of the concerns in a bundle, sorted."""

    baseline: tuple[str, ...]
    custom: tuple[str, ...]


def parse_modules(modules: Mapping[str, Module], opa: OpaTool) -> dict[str, Any]:
    """Return the syntax tree of every module by its path, as `OpaTool.parse` does; OPA is run for several at once.

    Raises:
        FileFaultsError: what is not Rego, in all of them.
        UsageError: OPA cannot be run.
    """
    faults: list[Fault] = []
    trees: dict[str, Any] = {}
    with ThreadPoolExecutor(max_workers=4) as threads:
        parsing = {path: threads.submit(opa.parse, path) for path in modules}
        for path, parsed in parsing.items():
            try:
                trees[path] = parsed.result()
            except FileFaultsError as error:
                faults += error.faults
    if faults:
        raise FileFaultsError(faults)
    return trees


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
        name = rule["head"]["ref"][0]["value"]
        if name in _PARTS:
            defined.add(name)
            if not _is_partial_set(rule):
                message = f"`{name}` of a concern must be a partial set: `{name} contains … if {{ … }}`"
                faults.append(_fault(module, rule, message, _BE_A_SET))
    asking = "a concern cannot ask the decision, which asks the concern"
    faults += [_fault(module, reference, asking, _ASK_LESS) for reference in _of_the_decision(tree)]
    return faults


def _of_the_decision(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The references to what stands in `data.authz` beside the library and the concerns.

    OPA refuses them as well, as a recursion of a dozen rules that its author has never seen.
    """
    imported = [one["path"] for one in tree.get("imports", ()) if len(one["path"]["value"]) > _ROOT]
    left: list[Any] = [tree.get("rules", []), imported]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(reversed(node))
        elif isinstance(node, dict):
            if node.get("type") == "ref" and _is_of_the_decision(node["value"]):
                yield node
            left.extend(reversed(node.values()))


def _is_of_the_decision(parts: Sequence[Mapping[str, Any]]) -> bool:
    names = [part["value"] for part in parts[: _ROOT + 1]]
    return names[:_ROOT] == ["data", "authz"] and names[_ROOT:] not in _OPEN


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


def _package(tree: Mapping[str, Any]) -> list[str]:
    return [str(term["value"]) for term in tree["package"]["path"][1:]]


def _fault(module: Module, node: Mapping[str, Any], message: str, hint: str) -> Fault:
    row, column = node["location"]["row"], node["location"]["col"]
    return Fault(Place(str(module.file), row, column), message, hint=hint, source=module.text.split("\n")[row - 1])
