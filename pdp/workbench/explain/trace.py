"""Which rules fired for one request, and at which condition the others stopped: read from OPA's full trace.

The trace is a list of events: a rule is entered (Enter), its conditions are evaluated (Eval), one of them is not met
(Fail), or the rule holds (Exit). Indexing and early exits are switched off, or OPA would skip rules silently. What a
trace leaves out stays unknown: a rule that was never entered has no condition at which it stopped.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.opa.evaluation import DECISION, Evaluator
from pdp.workbench.opa.rules import DECISION_ITSELF, PARTS, rule_sites, statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.rules import RuleSite

# A bundle of an older release may lack the findings.
_QUERY: Final = f"decision := {DECISION}; findings := [all | all := data.authz.findings]"
_OPTIONS: Final = ("--explain=full", "--disable-indexing", "--disable-early-exit")
_DEEPEST: Final = 4
_MOST_VALUES: Final = 8
_ROOTS: Final = ("input", "data")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_LIBRARY: Final = "data.authz.lib."
_NESTED: Final = ("array", "set")


@dataclass(frozen=True, slots=True)
class Seen:
    """A value that a condition saw; `value` says nothing where it was not `defined`."""

    name: str
    value: Any
    defined: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was not met.

    Attributes:
        text: as it is written, one line.
        file: the author's file; line: from 1.
        seen: what its variables and references were.
        because: where it asks other rules that did not hold, what they stopped at.
    """

    text: str
    file: str
    line: int
    seen: tuple[Seen, ...]
    because: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleRun:
    """One rule for one request.

    Attributes:
        site: the rule.
        asked: whether it was evaluated at all; a concern is not asked about a request of a wrong shape.
        fired: whether it found something.
        stopped: the first condition that was not met, if it did not fire and the trace tells.
    """

    site: RuleSite
    asked: bool
    fired: bool
    stopped: Condition | None


def trace(opa: Path, modules: Mapping[str, Module], data: Mapping[str, Any], body: bytes) -> tuple[RuleRun, ...]:
    """Evaluate the decision for one request, and tell of every rule that `rule_sites` finds whether it fired.

    Args:
        opa: the program.
        modules: by their path in the bundle.
        data: the whole data: `config`, `manifests`, `directory`, `settings`.
        body: the request as canonical JSON.

    Returns:
        the runs in the order of `rule_sites`.

    Raises:
        FileFaultsError, EngineTimeoutError, UsageError: as of `Evaluator.query`; among them an evaluation that fails.
    """
    with Evaluator(opa, {path: module.text for path, module in modules.items()}, data) as evaluator:
        answer = evaluator.query(_QUERY, body, *_OPTIONS)
        codes = _denials(answer)
        events = _Events(answer.get("explanation") or [], modules)
        stops = [events.outcome(site, codes) for site in rule_sites(modules)]
        names = {reference for _, _, _, stop in stops if stop for reference in stop.references()}
        values = _values(evaluator, body, sorted(names))
    return tuple(RuleRun(site, asked, fired, stop.read(values) if stop else None) for site, asked, fired, stop in stops)


def _denials(answer: Mapping[str, Any]) -> set[str]:
    """The codes of what denied: of all that did, or of what the decision names."""
    try:
        bindings = answer["result"][0]["bindings"]
        decision, findings = bindings["decision"], bindings["findings"]
        reasons = findings[0]["deny"] if findings else decision["reasons"] if decision["verdict"] == "DENY" else ()
        return {str(reason["code"]) for reason in reasons}
    except (KeyError, IndexError, TypeError):
        return set()


def _values(evaluator: Evaluator, body: bytes, names: Sequence[str]) -> dict[str, list[Any]]:
    """The value of each reference, in a list; the list is empty where it is undefined."""
    if not names:
        return {}
    query = ", ".join(f"[x | x := {name}]" for name in names)
    answer = evaluator.query(f"[{query}]", body)
    found: list[list[Any]] = answer["result"][0]["expressions"][0]["value"]
    return dict(zip(names, found, strict=True))


@dataclass(frozen=True, slots=True)
class _Stop:
    """A condition that was not met, before the values of its references are known.

    `asked` are references without variables, as Rego, each with its name as its author would write it.
    """

    text: str
    file: str
    line: int
    known: tuple[Seen, ...]
    asked: Mapping[str, str]
    because: tuple[_Stop, ...]

    def references(self) -> Iterator[str]:
        """Yield the references whose values are asked for, those of the conditions beneath included."""
        yield from self.asked
        for stop in self.because:
            yield from stop.references()

    def read(self, values: Mapping[str, list[Any]]) -> Condition:
        """Return the condition with the values of its references, each in a list that is empty where undefined."""
        seen = list(self.known)
        for reference, name in self.asked.items():
            value = values.get(reference, [])
            seen.append(Seen(name, value[0] if value else None, defined=bool(value)))
        distinct = {one.name: one for one in seen}
        because = tuple(stop.read(values) for stop in self.because)
        return Condition(self.text, self.file, self.line, tuple(distinct.values()), because)


class _Events:
    """A trace, sorted by query: each entered rule and each body of a `not`, an `every` or a comprehension is one."""

    def __init__(self, events: Sequence[Mapping[str, Any]], modules: Mapping[str, Module]) -> None:
        self._modules = modules
        self._lines = {path: module.text.split("\n") for path, module in modules.items()}
        self._of_query: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._children: dict[int, list[int]] = defaultdict(list)
        self._entered: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._named: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._held: set[int] = set()
        self._packages = {_package(module.text): path for path, module in modules.items()}
        for event in events:
            location = event.get("Location") or {}
            if location.get("file") not in modules:
                continue
            query, node = event["QueryID"], event.get("Node")
            if query not in self._of_query:
                self._children[event["ParentID"]].append(query)
            self._of_query[query].append(event)
            if event["Op"] == "Exit":
                self._held.add(query)
            elif event["Op"] == "Enter" and isinstance(node, dict) and "head" in node:
                self._entered[location["file"], location["row"]].append(query)
                name = node["head"].get("name") or (node["head"].get("ref") or [{}])[0].get("value", "")
                self._named[location["file"], name].append(query)

    def outcome(self, site: RuleSite, codes: set[str]) -> tuple[RuleSite, bool, bool, _Stop | None]:
        """Return whether the rule was asked, whether it fired, and where it stopped."""
        queries = [query for line in range(site.line, site.last_line + 1) for query in self._entered[site.module, line]]
        if site.name not in PARTS:
            # A helper that makes the reason: its conditions are those of the rules that use it.
            fired = site.code in codes
            if not any(self._fails(query) for query in queries):
                queries += self._callers(site)
        else:
            fired = any(query in self._held for query in queries)
        stop = None if fired else self._stop(queries, 0)
        if stop is not None and site.concern == DECISION_ITSELF:
            # The decision asks every concern, and each of them is told of by itself.
            stop = replace(stop, because=())
        return site, bool(queries), fired, stop

    def _callers(self, site: RuleSite) -> list[int]:
        mentions = re.compile(rf"\b{re.escape(site.name)}\b")
        return [
            query
            for statement in statements(self._modules[site.module].text)
            if statement.line != site.line and mentions.search(statement.text)
            for line in range(statement.line, statement.line + statement.text.count("\n") + 1)
            for query in self._entered[site.module, line]
        ]

    def _fails(self, query: int) -> list[Mapping[str, Any]]:
        return [event for event in self._of_query[query] if event["Op"] == "Fail"]

    def _stop(self, queries: Iterable[int], depth: int) -> _Stop | None:
        """Where these queries of one rule stopped: at the condition that none of them came beyond."""
        fails = [event for query in queries if query not in self._held for event in self._fails(query)]
        if not fails or depth > _DEEPEST:
            return None
        return self._stop_at(max(fails, key=_progress), depth)

    def _stop_at(self, event: Mapping[str, Any], depth: int) -> _Stop:
        path, row, column = (event["Location"][name] for name in ("file", "row", "col"))
        query = event["QueryID"]
        negated = bool(event["Node"].get("negated"))
        # OPA takes a condition apart; its parts have the condition's line.
        parts = [
            one["Node"]
            for one in self._of_query[query]
            if one["Op"] in ("Eval", "Fail") and one["Location"]["row"] == row and isinstance(one["Node"], dict)
        ]
        local = _locals(event)
        line = self._lines[path][row - 1] if row <= len(self._lines[path]) else ""
        text = _condition_text(line, column)
        # OPA lists variables in no fixed order.
        known = tuple(
            Seen(name, value, defined=True)
            for name, value in sorted(local.values(), key=lambda pair: (text.find(pair[0]), pair[0]))
            if not name.startswith("__local") and re.search(rf"\b{re.escape(name)}\b", text)
        )
        scalars = {generated: value for generated, (_, value) in local.items()}
        asked = _references_in([*parts, event["Node"]], scalars)
        because: tuple[_Stop, ...] = ()
        if negated:
            asked += self._inputs_of(query, row)
        else:
            because = self._because(event, asked, depth)
        package = _package(self._modules[path].text)
        names = {reference: _shown_name(reference, package) for reference in asked if not self._is_package(reference)}
        limited = dict(islice(names.items(), _MOST_VALUES))
        return _Stop(text, str(self._modules[path].file), row, known, limited, because)

    def _is_package(self, reference: str) -> bool:
        """Whether it names a package or what is above one, which is no value that a condition saw."""
        name = reference.removeprefix("data.")
        return any(f"{package}.".startswith(f"{name}.") for package in (*self._packages, "custom.concerns"))

    def _inputs_of(self, query: int, row: int) -> Iterator[str]:
        """What the rules under a `not` read of the request: they held, and these are why."""
        pending = [child for child in self._children[query] if self._row(child) == row]
        while pending:
            child = pending.pop(0)
            pending += self._children[child]
            for event in self._of_query[child]:
                if event["Op"] == "Eval" and isinstance(event["Node"], dict):
                    scalars = {generated: value for generated, (_, value) in _locals(event).items()}
                    references = _references_in([event["Node"]], scalars)
                    yield from (reference for reference in references if reference.startswith("input."))

    def _row(self, query: int) -> int:
        return int(self._of_query[query][0]["Location"]["row"])

    def _because(self, event: Mapping[str, Any], asked: Sequence[str], depth: int) -> tuple[_Stop, ...]:
        """Where the rules stopped that the condition asks; one of them for each of their definitions."""
        path = event["Location"]["file"]
        children = [child for child in self._children[event["QueryID"]] if child not in self._held]
        rows = _rows(event, self._lines[path])
        inside = [child for child in children if self._is_rule(child) or self._row(child) in rows]
        # A rule is evaluated once, so it may have been entered for somebody else.
        for reference in asked:
            package, _, name = reference.removeprefix("data.").rpartition(".")
            if package in self._packages:
                inside += [one for one in self._named[self._packages[package], name] if one not in self._held]
        names = {one.rpartition(".")[2] for one in _called(event["Node"])}
        names |= {reference.rpartition(".")[2] for reference in asked}
        by_place: dict[tuple[str, int], list[int]] = defaultdict(list)
        for child in dict.fromkeys(inside):
            if not self._is_rule(child) or self._may_explain(child, names):
                first = self._of_query[child][0]
                by_place[first["Location"]["file"], first["Location"]["row"]].append(child)
        found: list[_Stop] = []
        for _, queries in sorted(by_place.items()):
            stop = self._stop(queries, depth + 1)
            if stop is not None:
                # An `every` fails within itself: what stands in its place says no more than it does.
                same = (stop.file, stop.line) == (str(self._modules[path].file), event["Location"]["row"])
                found += stop.because if same else [stop]
        return tuple(found)

    def _may_explain(self, query: int, names: set[str]) -> bool:
        """Whether a rule that did not hold has one of these names, and no other definition of it held."""
        entered = self._of_query[query][0]
        head = entered["Node"]["head"]
        name = head.get("name")
        held = any(one in self._held for one in self._named[entered["Location"]["file"], name])
        return name in names and (not held or "args" in head)

    def _is_rule(self, query: int) -> bool:
        node = self._of_query[query][0]["Node"]
        return isinstance(node, dict) and "head" in node


def _progress(event: Mapping[str, Any]) -> int:
    return int(event["Node"].get("index", 0)) if isinstance(event["Node"], dict) else 0


def _rows(event: Mapping[str, Any], lines: Sequence[str]) -> range:
    """The rows that a condition takes: more than one where it opens a block."""
    first = int(event["Location"]["row"])
    if not lines[first - 1].rstrip().endswith("{"):
        return range(first, first + 1)
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    last = next(
        (
            row
            for row in range(first + 1, len(lines) + 1)
            if lines[row - 1].strip() and len(lines[row - 1]) - len(lines[row - 1].lstrip()) <= indent
        ),
        len(lines),
    )
    return range(first, last + 1)


def _called(node: Any) -> set[str]:
    """The functions that a condition calls, `every` bodies included, by their last name."""
    found: set[str] = set()
    if isinstance(node, list):
        for item in node:
            found |= _called(item)
    elif isinstance(node, dict):
        if node.get("type") == "ref" and isinstance(node["value"], list):
            found.add(".".join(str(part.get("value")) for part in node["value"]))
        for value in node.values():
            found |= _called(value)
    return found


def _locals(event: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """The variables by their generated names: the author's name, and the value."""
    metadata = event.get("LocalMetadata") or {}
    return {
        one["name"]: (str(metadata.get(one["name"], {}).get("name", one["name"])), _value_of(one))
        for one in event.get("Locals") or ()
    }


def _condition_text(line: str, column: int) -> str:
    """The condition that stands at `column` of a rule's line; what opens a block is left out."""
    text = line.strip()
    head, found, body = line.partition(" if ")
    if found and len(head.encode()) < column - 1 and body.strip() != "{":
        text = body.strip()
    return text.removesuffix("{").strip()


def _package(text: str) -> str:
    found = re.search(r"^package\s+([\w.]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _value_of(term: Mapping[str, Any]) -> Any:
    """Return a ground term as plain JSON, sets as lists; what is none, as its kind in angle brackets."""
    kind, value = term.get("type"), term.get("value")
    if kind in _NESTED and isinstance(value, list):
        return [_value_of(item) for item in value]
    if kind == "object" and isinstance(value, list):
        return {str(_value_of(key)): _value_of(item) for key, item in value}
    if kind in ("string", "number", "boolean", "null"):
        return value
    return f"<{kind}>"


def _references_in(nodes: Sequence[Any], variables: Mapping[str, Any]) -> list[str]:
    """Return the references to input and data in expressions, each once, without functions that are called.

    Args:
        nodes: expressions of the syntax tree.
        variables: values by name, put in where a reference has a variable. A reference ends at the first variable
            that is unknown, or whose value is neither text nor number.
    """
    texts = (_text(term, variables) for node in nodes for term in _references(node))
    return list(dict.fromkeys(text for text in texts if text is not None))


def _shown_name(text: str, package: str) -> str:
    """Return a reference as an author writes it in `package`: own rules by name, libraries by their last name."""
    if text.startswith(_LIBRARY) and not f"data.{package}.".startswith(_LIBRARY):
        return text.removeprefix(_LIBRARY)
    own = f"data.{package}."
    return text.removeprefix(own) if text.startswith(own) else text.removeprefix(_LIBRARY)


def _references(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        terms = node.get("terms")
        if isinstance(terms, list):
            # The first one is the operator, a reference as well.
            yield from _references(terms[1:])
            return
        if node.get("type") == "ref":
            yield node["value"]
            return
        if node.get("type") == "call":
            yield from _references(node["value"][1:])
            return
        for value in node.values():
            yield from _references(value)


def _text(term: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str | None:
    if not term or term[0].get("type") != "var" or term[0].get("value") not in _ROOTS:
        return None
    text = str(term[0]["value"])
    for part in term[1:]:
        value = part.get("value")
        if part.get("type") == "var":
            value = variables.get(str(value))
        if isinstance(value, bool) or not isinstance(value, str | int):
            break
        plain = isinstance(value, str) and _PLAIN.fullmatch(value)
        text += f".{value}" if plain else f"[{json.dumps(value)}]"
    return None if text in _ROOTS else text
