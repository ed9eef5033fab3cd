"""The Rego that goes into a bundle: found in folders, and held to the rules for who may write what where.

The baseline's modules are packages under `authz`. A user's are all `package custom.concerns.NAME`: they could otherwise
join a package of the baseline, or be overlooked by the decision, which finds concerns by their path.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import Fault, FileFaultsError, Place, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdp.bundle.opa_tool import OpaTool

DECISION: Final = "authz/decision.rego"
"""The module by which a folder is known to be the baseline."""

MAX_MODULE: Final = 1024 * 1024
"""Largest Rego file, in bytes."""

_PARTS: Final = ("deny", "step_up", "allow", "obligations")
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_USER_PACKAGE: Final = "a custom module must be `package custom.concerns.NAME`"


@dataclass(frozen=True, slots=True)
class Module:
    """One Rego file: where it was found, its text with plain line feeds, and whether it is the user's."""

    file: Path
    text: str
    custom: bool


@dataclass(frozen=True, slots=True)
class Concerns:
    """The names of the concerns in a bundle, sorted."""

    baseline: tuple[str, ...]
    custom: tuple[str, ...]


def baseline_folder(folders: Sequence[Path]) -> Path:
    """Return the folder that holds the baseline.

    Raises:
        UsageError: none does, or more than one; or a folder is none.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a folder", hint="name folders with Rego files")
    found = [folder for folder in folders if (folder / DECISION).is_file()]
    if len(found) != 1:
        wrong = "none of the folders has" if not found else "more than one folder has"
        raise UsageError(f"{wrong} {DECISION}", hint="name the baseline's folder once, and your own beside it")
    return found[0]


def collect(baseline: Path, folders: Sequence[Path]) -> dict[str, Module]:
    """Find the modules, tests left out: the baseline's under its `authz`, the user's anywhere in the other folders.

    Returns:
        the modules by their path in the bundle, sorted; a user's is the one in its folder, with `custom/` before it.

    Raises:
        UsageError: a file cannot be read, is too large, or has a name that a bundle cannot have; a folder has none.
    """
    found: dict[str, Module] = {}
    for folder in folders:
        custom = folder != baseline
        top = folder if custom else folder / "authz"
        files = sorted(
            (file for file in top.rglob("*.rego") if file.is_file() and not file.name.endswith("_test.rego")),
            key=lambda file: file.relative_to(folder).as_posix(),
        )
        if not files:
            raise UsageError(f"{folder}: no Rego file in it", hint="name folders with Rego files")
        for file in files:
            parts = file.relative_to(folder).parts
            if not all(_FILE.fullmatch(part) for part in parts):
                raise UsageError(
                    f"{file}: not a name for a bundle",
                    hint="use letters, digits, `_`, `-` and `.`, without a `.` first",
                )
            path = "/".join(("custom", *parts) if custom and parts[0] != "custom" else parts)
            if path in found:
                raise UsageError(
                    f"{file}: {found[path].file} would have the same place in the bundle", hint="rename one of them"
                )
            found[path] = Module(file, _text(file), custom)
    return dict(sorted(found.items()))


def check_packages(modules: Mapping[str, Module], opa: OpaTool) -> Concerns:
    """Hold every module to its package, and the user's to what a concern may define.

    Raises:
        FileFaultsError: each module or rule that is not admitted, by name and place.
        UsageError: a concern that defines nothing, or OPA cannot be run.
    """
    trees = _parsed(modules, opa)
    baseline: set[str] = set()
    custom: dict[str, set[str]] = {}
    faults: list[Fault] = []
    for path, tree in trees.items():
        if modules[path].custom:
            continue
        package = _package(tree)
        if package[:1] != ["authz"]:
            message = f"`package {'.'.join(package)}` in the baseline, which is `package authz` and below"
            faults.append(_fault(modules[path], tree["package"], message))
        elif package[1:2] == ["concerns"]:
            baseline.update(package[2:3])
    for path, tree in trees.items():
        if modules[path].custom:
            faults += _custom_faults(modules[path], tree, baseline, custom)
    if faults:
        raise FileFaultsError(faults)
    for name, defined in sorted(custom.items()):
        if not defined:
            raise UsageError(
                f"the concern custom.concerns.{name} defines nothing", hint=f"it needs one of {', '.join(_PARTS)}"
            )
    return Concerns(tuple(sorted(baseline)), tuple(sorted(custom)))


def _parsed(modules: Mapping[str, Module], opa: OpaTool) -> dict[str, Any]:
    """The syntax tree of every module; OPA is run for each, so several at once."""
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


def _custom_faults(
    module: Module, tree: Mapping[str, Any], baseline: set[str], custom: dict[str, set[str]]
) -> list[Fault]:
    """What a user's module does that it must not; which parts it defines is added to `custom`, by concern."""
    package = _package(tree)
    wrong = _misplaced(package, baseline)
    if wrong:
        return [_fault(module, tree["package"], wrong)]
    faults = []
    defined = custom.setdefault(package[2], set())
    for rule in tree.get("rules", ()):
        name = rule["head"]["ref"][0]["value"]
        if name in _PARTS:
            defined.add(name)
            if not _is_partial_set(rule):
                message = f"`{name}` of a concern must be a partial set: `{name} contains … if {{ … }}`"
                faults.append(_fault(module, rule, message))
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
    return None


def _is_partial_set(rule: Mapping[str, Any]) -> bool:
    head = rule["head"]
    return len(head["ref"]) == 1 and "key" in head and not head.keys() & {"value", "args"}


def _package(tree: Mapping[str, Any]) -> list[str]:
    return [str(term["value"]) for term in tree["package"]["path"][1:]]


def _fault(module: Module, node: Mapping[str, Any], message: str) -> Fault:
    row, column = node["location"]["row"], node["location"]["col"]
    return Fault(Place(str(module.file), row, column), message, source=module.text.split("\n")[row - 1])


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_MODULE + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_MODULE:
        raise UsageError(f"{file}: larger than {MAX_MODULE} bytes", hint="is this Rego?")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text", hint="is this Rego?") from error
    # Line ends differ between checkouts of one source, and must not make another bundle of it.
    return text.replace("\r\n", "\n")
