"""Read `properties.yaml`. The conditions of all properties become one Rego module, which has the lines of the file."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from pdp.documents import Document, faults_of, read_document
from pdp.errors import Fault, FileFaultsError, Place
from pdp.opa.modules import Module, baseline_policies_path
from pdp.opa.names import KnownNames
from pdp.opa.syntax import imports_of, nodes, operator, parse_modules
from pdp.opa.tool import OpaTool

PROPERTIES_FILE: Final = "properties.yaml"
MODULE: Final = "custom/properties/properties.rego"
PACKAGE: Final = "custom.properties"
HOLDING: Final = f"{PACKAGE}.holding"
"""The rule with the names of the properties' rules that hold, and the codes of all denials and step-ups."""

_CODES: Final = (
    "holding contains reason.code if some reason in (data.authz.findings.deny | data.authz.findings.step_up)"
)
_LIBRARY: Final = re.compile(r"package (authz\.lib\.(\w+))$", re.MULTILINE)
_ROOTS: Final = ("authz", "custom")

_Text = Annotated[StrictStr, Field(min_length=1, max_length=4096)]


class StatedProperty(BaseModel):
    """A property as a file states it. `when` has Rego conditions; one of `never` and `only` says what they exclude."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[StrictStr, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    title: _Text
    when: _Text
    never: Literal["ALLOW"] | None = None
    only: Annotated[tuple[Literal["DENY"], ...], Field(min_length=1, max_length=1)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    properties: Annotated[tuple[StatedProperty, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Property:
    """A property and the `rule` that holds when its conditions do. If not `denied`, a STEP_UP is good enough."""

    id: str
    title: str
    rule: str
    denied: bool
    fault: Fault


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a file, and the module with their rules."""

    items: tuple[Property, ...]
    module: Module


def read_properties(file: Path, modules: Mapping[str, Module], names: KnownNames, opa: Path) -> Properties:
    """Read a file with properties about the policy of `modules`. Raises `FileFaultsError` with all faults."""
    document = read_document(file)
    try:
        stated = _File.model_validate(document.value).properties
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, _File)) from None
    if faults := list(_faults(stated, document)):
        raise FileFaultsError(faults)
    text = "\n".join(each.when for each in stated)
    libraries = {found[2]: found[1] for module in modules.values() if (found := _LIBRARY.search(module.text))}
    used = [path for name, path in sorted(libraries.items()) if re.search(rf"(?<![\w.]){name}\.", text)]
    head = " ".join((f"package {PACKAGE}", *(f"import data.{path}" for path in used), "import rego.v2"))
    module = Module(file, "\n".join(_lines(head, stated, document)), custom=True)
    _check({**modules, MODULE: module}, names, opa)
    items = (
        Property(
            each.id, each.title, f"{PACKAGE}.{_rule(at)}", each.only is not None,
            document.fault(("properties", at, "when"), "can never hold", "a property about no request proves nothing"),
        )
        for at, each in enumerate(stated)
    )  # fmt: skip
    return Properties(tuple(items), module)


def _rule(at: int) -> str:
    return f"p{at}"


def _faults(stated: tuple[StatedProperty, ...], document: Document) -> Iterator[Fault]:
    seen = set[str]()
    for at, each in enumerate(stated):
        if (each.never is None) == (each.only is None):
            yield document.fault(("properties", at), "needs one of `never: ALLOW` and `only: [DENY]`")
        if each.id in seen:
            yield document.fault(("properties", at, "id"), f"`{each.id}` is the id of two properties", "rename one")
        seen.add(each.id)
        if all(line.strip()[:1] in ("", "#") for line in each.when.splitlines()):
            yield document.fault(("properties", at, "when"), "has no condition")
        if "\n" in each.when.strip() and not _is_block(document, at):
            yield document.fault(("properties", at, "when"), "must be a block", "begin it with `when: |`")


def _is_block(document: Document, at: int) -> bool:
    place = document.place(("properties", at, "when"))
    return document.lines[place.line - 1][place.column - 1 :].startswith("|")


def _lines(head: str, stated: tuple[StatedProperty, ...], document: Document) -> list[str]:
    """Return a module with the rules of the properties. Conditions keep their lines and columns of the file."""
    lines = [f"{head} ", *([""] * len(document.lines))]
    for at, each in enumerate(stated):
        place = document.place(("properties", at, "when"))
        opened = f"{_rule(at)} if {{"
        end = place.line
        if _is_block(document, at):
            lines[place.line - 1] += opened
            end += len(each.when.rstrip("\n").split("\n"))
            lines[place.line : end] = document.lines[place.line : end]
        else:
            lines[place.line - 1] += f"{opened:<{max(place.column - 1, 0)}}{each.when}"
        lines[end] += "} "
    return [*lines, _CODES, *(f'holding contains "{PACKAGE}.{_rule(at)}" if {_rule(at)}' for at in range(len(stated)))]


def _check(modules: Mapping[str, Module], names: KnownNames, opa: Path) -> None:
    """Raise `FileFaultsError` if the properties are not Rego, or name something that does not exist."""
    trees = parse_modules(opa, {MODULE: modules[MODULE]})
    policies = baseline_policies_path()
    request = orjson.loads((policies / "schemas/request.json").read_bytes())
    with TemporaryDirectory(prefix="pdp-properties-") as folder:
        tool = OpaTool(opa, Path(folder, "policies"), modules, capabilities=policies / "capabilities.json")
        tool.check(request, names.schemas(request))
    known = {f"{package}.{rule}" for package, rule in _rules(opa, modules)}
    imports = {name: [str(part["value"]) for part in path] for name, path in imports_of(trees[MODULE]).items()}
    faults = []
    values = names.values()
    for node in nodes(trees[MODULE]["rules"]):
        terms = node.get("terms")
        if isinstance(terms, list) and operator(terms) in ("eq", "equal", "internal.member_2"):
            for one, other in permutations(terms[1:], 2):
                name = ".".join(str(part.get("value")) for part in one["value"]) if one["type"] == "ref" else ""
                if name in values and other["type"] == "string" and other["value"] not in values[name]:
                    place = Place(str(modules[MODULE].file), other["location"]["row"], other["location"]["col"])
                    faults.append(Fault(place, f"`{name}` is never `{other['value']}`", "check its spelling"))
        if node.get("type") != "ref":
            continue
        parts = [str(part.get("value")) for part in node["value"]]
        path = [*imports.get(parts[0], parts[:1]), *parts[1:]][1:]
        if imports.get(parts[0], parts)[0] == "data" and path[0] in _ROOTS and not _leads_to(path, known):
            place = Place(str(modules[MODULE].file), node["location"]["row"], node["location"]["col"])
            faults.append(Fault(place, f"`data.{'.'.join(path)}` does not exist", "check its spelling"))
    if faults:
        raise FileFaultsError(faults)


def _rules(opa: Path, modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    for tree in parse_modules(opa, modules).values():
        package = ".".join(str(part["value"]) for part in tree["package"]["path"][1:])
        yield from ((package, str(rule["head"]["ref"][0]["value"])) for rule in tree.get("rules") or ())


def _leads_to(path: list[str], known: set[str]) -> bool:
    return any(".".join(path[:end]) in known for end in range(1, len(path) + 1))
