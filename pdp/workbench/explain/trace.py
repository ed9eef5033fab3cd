"""Which rules fired for one request, and at which condition the others stopped: read from OPA's full trace.

The trace is a stream of events: a rule is entered (Enter), its conditions are evaluated (Eval), one of them is not met
(Fail), or the rule holds (Exit). What stands in the stream between the first evaluation of a condition and its failure
was evaluated for it. Indexing and early exits are switched off, or OPA would skip rules silently. What a trace leaves
out stays unknown: a rule that was never entered has no condition at which it stopped.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdp.errors import EngineTimeoutError, UsageError
from pdp.opa.evaluation import Evaluator
from pdp.opa.modules import Module
from pdp.opa.program import WITHOUT_OPA
from pdp.opa.rules import RuleSite, rule_sites
from pdp.opa.syntax import is_not, nodes

# A decision asks for no more than its verdict needs; the findings ask every rule.
_QUERY: Final = "[data.authz.decision, data.authz.findings]"
_OPTIONS: Final = ("--explain=full", "--disable-indexing", "--disable-early-exit")
_DEEPEST: Final = 4
_MOST_VALUES: Final = 8
_PACKAGE: Final = re.compile(r"^package\s+([\w.]+)", re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_LIBRARY: Final = "data.authz.lib."
_RULES: Final = ("data.authz.", "data.custom.")


@dataclass(frozen=True, slots=True)
class Seen:
    """A value that a condition saw; `value` says nothing where it was not `defined`."""

    name: str
    value: Any
    defined: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was not met, as it is written, in the author's file.

    Attributes:
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
    """One rule for one request, and whether it found something.

    Attributes:
        asked: whether it was evaluated at all; a concern is not asked about a request of a wrong shape.
        stopped: the first condition that was not met, if it did not fire and the trace tells.
    """

    site: RuleSite
    asked: bool
    fired: bool
    stopped: Condition | None


def trace(
    opa: Path | None, modules: Mapping[str, Module], data: Mapping[str, Any], body: bytes
) -> tuple[tuple[RuleRun, ...], str | None]:
    """Evaluate the decision for one request, and return how each rule ran, in the order of `rule_sites`.

    Returns:
        the runs and None; or none, and why they are not known, to go on from "not known".
    """
    if opa is None:
        return (), WITHOUT_OPA
    sites = rule_sites(modules)
    try:
        with Evaluator(opa, {path: module.text for path, module in modules.items()}, data) as evaluator:
            stream = _Stream(evaluator.query(_QUERY, body, *_OPTIONS).get("explanation") or [], modules)
            for site in sites:
                stream.run(site)  # notes what the conditions read
            references = sorted(stream.values)
            query = ", ".join(f"[x | x := {reference}]" for reference in references)
            answer = evaluator.query(f"[{query}]", body)
    except (UsageError, EngineTimeoutError) as error:
        return (), f": {error}"
    stream.values = dict(zip(references, answer["result"][0]["expressions"][0]["value"], strict=True))
    return tuple(stream.run(site) for site in sites), None


class _Stream:
    """A trace. A query of it is an entered rule, or an entered body of a `not`, an `every` or a comprehension.

    `values` has by each reference that a condition reads a list with its value; empty where it is undefined, or is not
    known yet.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]], modules: Mapping[str, Module]) -> None:
        self.values: dict[str, list[Any]] = {}
        self._modules = modules
        self._packages = {path: _package(module.text) for path, module in modules.items()}
        self._events = [event for event in events if (event.get("Location") or {}).get("file") in modules]
        self._fails: dict[int, list[int]] = defaultdict(list)
        self._held: set[int] = set()
        self._places: dict[int, tuple[str, int]] = {}
        self._names: dict[int, str] = {}
        self._rules_at: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._rules_named: dict[str, list[int]] = defaultdict(list)
        for position, event in enumerate(self._events):
            query, node, location = event["QueryID"], event.get("Node"), event["Location"]
            if event["Op"] == "Exit":
                self._held.add(query)
            elif event["Op"] == "Fail":
                self._fails[query].append(position)
            elif event["Op"] == "Enter":
                self._places[query] = location["file"], location["row"]
                if isinstance(node, dict) and "head" in node:
                    head = node["head"]
                    name = head.get("name") or (head.get("ref") or [{}])[0].get("value", "")
                    self._names[query] = f"data.{self._packages[location['file']]}.{name}"
                    self._rules_named[self._names[query]].append(query)
                    self._rules_at[self._places[query]].append(query)

    def run(self, site: RuleSite) -> RuleRun:
        """Return whether a rule was asked, whether it fired, and where it stopped."""
        lines = range(site.line, site.last_line + 1)
        queries = [query for line in lines for query in self._rules_at[site.module, line]]
        fired = not self._held.isdisjoint(queries)
        return RuleRun(site, bool(queries), fired, None if fired else self._stop(queries, 0))

    def _stop(self, queries: Iterable[int], depth: int) -> Condition | None:
        """Where these queries of one rule stopped: at the condition that none of them came beyond."""
        fails = [position for query in queries if query not in self._held for position in self._fails[query]]
        if not fails or depth > _DEEPEST:
            return None
        return self._condition(max(fails, key=lambda position: self._events[position]["Node"].get("index", 0)), depth)

    def _condition(self, position: int, depth: int) -> Condition:
        event = self._events[position]
        query, place = event["QueryID"], event["Location"]
        negated = event["Node"].get("negated", False) or is_not(event["Node"])
        module, row = self._modules[place["file"]], place["row"]
        within = self._evaluated_for(position)
        # OPA takes a condition apart; its parts have the condition's line.
        own = [part["Node"] for part in within if part["QueryID"] == query and part["Op"] in ("Eval", "Fail")]
        references = _references(own, event)
        names = list(references)
        if negated:
            # The rules under a `not` held; what they read of the request says why.
            names += [
                reference
                for part in within
                if part["QueryID"] != query and part["Op"] == "Eval"
                for reference in _references(part["Node"], part)
                if reference.startswith("input.")
            ]
        text = _condition_text(module.text.split("\n")[row - 1], place["col"])
        # OPA lists variables in no fixed order.
        seen = [
            Seen(name, value, defined=True)
            for name, value in sorted(_locals(event).values(), key=lambda pair: (text.find(pair[0]), pair[0]))
            if not name.startswith("__local") and re.search(rf"\b{re.escape(name)}\b", text)
        ]
        for name in list(dict.fromkeys(names))[:_MOST_VALUES]:
            values = self.values.setdefault(name, [])
            shown = name.removeprefix(_LIBRARY).removeprefix(f"data.{self._packages[place['file']]}.")
            seen.append(Seen(shown, values[0] if values else None, defined=bool(values)))
        return Condition(
            text=text,
            file=str(module.file),
            line=row,
            seen=tuple({value.name: value for value in seen}.values()),
            because=() if negated else tuple(self._because(event, within, references, depth)),
        )

    def _evaluated_for(self, position: int) -> Sequence[Mapping[str, Any]]:
        """The events from where the condition that failed at `position` was begun, its failure included."""
        query, row = self._events[position]["QueryID"], self._events[position]["Location"]["row"]
        start = position
        for before in range(position - 1, -1, -1):
            event = self._events[before]
            if event["QueryID"] == query:
                if event["Op"] == "Enter" or event["Location"]["row"] != row:
                    break
                start = before
        return self._events[start : position + 1]

    def _because(
        self, event: Mapping[str, Any], within: Sequence[Mapping[str, Any]], references: Sequence[str], depth: int
    ) -> Iterator[Condition]:
        """Where the rules and bodies stopped that a condition asks; one of them for each of their definitions."""
        path, row = event["Location"]["file"], event["Location"]["row"]
        asked = [part["QueryID"] for part in within if part["Op"] == "Enter" and part["ParentID"] == event["QueryID"]]
        # A rule is evaluated once, so it may have been entered for somebody else.
        asked += [rule for reference in references for rule in self._rules_named[reference]]
        held = {self._names[rule] for rule in asked if rule in self._held and rule in self._names}
        by_place: dict[tuple[str, int], list[int]] = defaultdict(list)
        for rule in dict.fromkeys(asked):
            if self._names.get(rule) not in held:
                by_place[self._places[rule]].append(rule)
        for _, rules in sorted(by_place.items()):
            stop = self._stop(rules, depth + 1)
            if stop is not None:
                # An `every` fails within itself: what stands in its place says no more than it does.
                same = (stop.file, stop.line) == (str(self._modules[path].file), row)
                yield from stop.because if same else [stop]


def _package(text: str) -> str:
    package = _PACKAGE.search(text)
    return package[1] if package else ""


def _locals(event: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """The variables by their generated names: the author's name, and the value."""
    metadata = event.get("LocalMetadata") or {}
    return {
        variable["name"]: (str(metadata.get(variable["name"], {}).get("name", variable["name"])), _value_of(variable))
        for variable in event.get("Locals") or ()
    }


def _condition_text(line: str, column: int) -> str:
    """The condition that stands at `column` of a rule's line; what opens a block is left out."""
    head, _, body = line.partition(" if ")
    text = body if len(head.encode()) < column - 1 and body.strip() not in ("", "{") else line
    return text.strip().removesuffix("{").strip()


def _value_of(term: Mapping[str, Any]) -> Any:
    """Return a ground term as plain JSON, sets as lists; what is none, as its kind in angle brackets."""
    kind, value = term.get("type"), term.get("value")
    if kind in ("array", "set") and isinstance(value, list):
        return [_value_of(item) for item in value]
    if kind == "object" and isinstance(value, list):
        return {str(_value_of(key)): _value_of(item) for key, item in value}
    if kind in ("string", "number", "boolean", "null"):
        return value
    return f"<{kind}>"


def _references(tree: Any, event: Mapping[str, Any]) -> list[str]:
    """Return the references to input and data in a syntax tree, each once, without functions that are called.

    Variables in them are put in by their values. A reference ends at the first that is unknown, or neither text nor
    number.
    """
    variables = {generated: value for generated, (_, value) in _locals(event).items()}
    parts = list(nodes(tree))
    calls = [part.get("terms") or part["value"] for part in parts if "terms" in part or part.get("type") == "call"]
    called = {id(terms[0]) for terms in calls if isinstance(terms, list)}
    texts = (_text(part["value"], variables) for part in parts if part.get("type") == "ref" and id(part) not in called)
    return [text for text in dict.fromkeys(texts) if text not in ("", "input", "data")]


def _text(term: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """A reference as Rego; empty where it is to neither document."""
    text = str(term[0].get("value"))
    if text not in ("input", "data"):
        return ""
    for part in term[1:]:
        value = part.get("value")
        if part.get("type") == "var":
            # OPA refuses a key that it knows a rule not to have.
            value = None if text.startswith(_RULES) else variables.get(str(value))
        if isinstance(value, bool) or not isinstance(value, str | int):
            break
        plain = isinstance(value, str) and _PLAIN.fullmatch(value)
        text += f".{value}" if plain else f"[{json.dumps(value)}]"
    return text
