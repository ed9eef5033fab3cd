"""Find out from OPA's full trace which rules fired for a request, and at which condition each other rule stopped.

The trace is a stream of events: OPA enters a rule (Enter), evaluates its conditions (Eval), fails one of them (Fail),
or completes the rule (Exit). The events between the first evaluation of a condition and its failure belong to the
condition. Indexing and early exit are off, because OPA would skip rules without an event. If a rule is not in the
trace, the condition at which it stopped is unknown.
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
from pdp.opa.evaluation import TIMEOUT, Evaluator
from pdp.opa.modules import Module
from pdp.opa.program import WITHOUT_OPA
from pdp.opa.rules import RuleSite, rule_sites
from pdp.opa.syntax import is_not, nodes

# `findings` is evaluated instead of the decision, because a decision evaluates only the rules that its verdict needs.
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
    """A value that a condition read. If the value was not `defined`, the field `value` has no meaning."""

    name: str
    value: Any
    defined: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """A failed condition as written. `because` has the failed conditions of the rules that the condition uses."""

    text: str
    file: str
    line: int
    seen: tuple[Seen, ...]
    because: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleRun:
    """Whether a rule fired for a request. If it did not, `stopped` is the first failed condition, or None if unknown.

    `asked` is False if OPA did not evaluate the rule; for example, concerns are not evaluated for a malformed request.
    """

    site: RuleSite
    asked: bool
    fired: bool
    stopped: Condition | None


def trace(
    opa: Path | None,
    modules: Mapping[str, Module],
    data: Mapping[str, Any],
    body: bytes,
    timeout: float = TIMEOUT,
) -> tuple[tuple[RuleRun, ...], str | None]:
    """Return how each rule ran for a request, and None; if that is unknown, return no rules and the reason."""
    if opa is None:
        return (), WITHOUT_OPA
    sites = rule_sites(modules)
    try:
        texts = {path: module.text for path, module in modules.items()}
        with Evaluator(opa, texts, data, timeout=timeout) as evaluator:
            stream = _Stream(evaluator.query(_QUERY, body, *_OPTIONS).get("explanation") or [], modules)
            for site in sites:
                # The first run collects the references that conditions read; their values are then queried.
                stream.run(site)
            references = sorted(stream.values)
            query = ", ".join(f"[x | x := {reference}]" for reference in references)
            answer = evaluator.query(f"[{query}]", body)
    except (UsageError, EngineTimeoutError) as error:
        return (), f": {error}"
    stream.values = dict(zip(references, answer["result"][0]["expressions"][0]["value"], strict=True))
    return tuple(stream.run(site) for site in sites), None


class _Stream:
    """The events of a trace. A query is an entered rule, or the entered body of a `not`, an `every` or a comprehension.

    `values` maps each reference in a condition to a list with its value; the list of an undefined reference is empty.
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
        lines = range(site.line, site.last_line + 1)
        queries = [query for line in lines for query in self._rules_at[site.module, line]]
        fired = not self._held.isdisjoint(queries)
        return RuleRun(site, bool(queries), fired, None if fired else self._stop(queries, 0))

    def _stop(self, queries: Iterable[int], depth: int) -> Condition | None:
        """Return the last failed condition that OPA reached in the given evaluations of one rule."""
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
        # OPA splits a condition into several expressions, which all have the line of the condition.
        own = [part["Node"] for part in within if part["QueryID"] == query and part["Op"] in ("Eval", "Fail")]
        references = _references(own, event)
        names = list(references)
        if negated:
            # For a `not`, the values that its inner rules read from the request are also shown, because they decided
            # that the rules held.
            names += [
                reference
                for part in within
                if part["QueryID"] != query and part["Op"] == "Eval"
                for reference in _references(part["Node"], part)
                if reference.startswith("input.")
            ]
        text = _condition_text(module.text.split("\n")[row - 1], place["col"])
        # The names are sorted, because OPA lists variables in no fixed order.
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
        """Return the events of the condition that failed at `position`, from its first evaluation to its failure."""
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
        """Yield the failed conditions of the rules and bodies that a condition uses, one for each rule definition."""
        path, row = event["Location"]["file"], event["Location"]["row"]
        queries = [part["QueryID"] for part in within if part["Op"] == "Enter" and part["ParentID"] == event["QueryID"]]
        # OPA evaluates each rule only once, so the evaluation may have been caused by another condition.
        queries += [rule for reference in references for rule in self._rules_named[reference]]
        held = {self._names[rule] for rule in queries if rule in self._held and rule in self._names}
        by_place: dict[tuple[str, int], list[int]] = defaultdict(list)
        for rule in dict.fromkeys(queries):
            if self._names.get(rule) not in held:
                by_place[self._places[rule]].append(rule)
        for _, rules in sorted(by_place.items()):
            stop = self._stop(rules, depth + 1)
            if stop is not None:
                # If an `every` fails, the inner condition that failed is shown in its place.
                same = (stop.file, stop.line) == (str(self._modules[path].file), row)
                yield from stop.because if same else [stop]


def _package(text: str) -> str:
    package = _PACKAGE.search(text)
    return package[1] if package else ""


def _locals(event: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the value of each variable and its name in the author's file, keyed by the name that OPA generated."""
    metadata = event.get("LocalMetadata") or {}
    return {
        variable["name"]: (str(metadata.get(variable["name"], {}).get("name", variable["name"])), _value_of(variable))
        for variable in event.get("Locals") or ()
    }


def _condition_text(line: str, column: int) -> str:
    """Return the condition at `column` of a source line, without the rule's head before it or a brace after it."""
    head, _, body = line.partition(" if ")
    text = body if len(head.encode()) < column - 1 and body.strip() not in ("", "{") else line
    return text.strip().removesuffix("{").strip()


def _value_of(term: Mapping[str, Any]) -> Any:
    """Return a term as plain JSON, with sets as lists. A term that is no constant becomes its type, such as `<var>`."""
    kind, value = term.get("type"), term.get("value")
    if kind in ("array", "set") and isinstance(value, list):
        return [_value_of(item) for item in value]
    if kind == "object" and isinstance(value, list):
        return {str(_value_of(key)): _value_of(item) for key, item in value}
    if kind in ("string", "number", "boolean", "null"):
        return value
    return f"<{kind}>"


def _references(tree: Any, event: Mapping[str, Any]) -> list[str]:
    """Return each reference to `input` or `data` in a syntax tree once, with variables replaced by their values.

    Called functions are left out. A reference ends before the first part that is unknown, or neither string nor number.
    """
    variables = {generated: value for generated, (_, value) in _locals(event).items()}
    parts = list(nodes(tree))
    calls = [part.get("terms") or part["value"] for part in parts if "terms" in part or part.get("type") == "call"]
    called = {id(terms[0]) for terms in calls if isinstance(terms, list)}
    texts = (_text(part["value"], variables) for part in parts if part.get("type") == "ref" and id(part) not in called)
    return [text for text in dict.fromkeys(texts) if text not in ("", "input", "data")]


def _text(term: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """Return a reference to `input` or `data` as Rego text. For any other reference, return an empty text."""
    text = str(term[0].get("value"))
    if text not in ("input", "data"):
        return ""
    for part in term[1:]:
        value = part.get("value")
        if part.get("type") == "var":
            # OPA rejects a query for a key that a rule's value certainly lacks, so rules are not queried.
            value = None if text.startswith(_RULES) else variables.get(str(value))
        if isinstance(value, bool) or not isinstance(value, str | int):
            break
        plain = isinstance(value, str) and _PLAIN.fullmatch(value)
        text += f".{value}" if plain else f"[{json.dumps(value)}]"
    return text
