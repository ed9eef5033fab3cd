"""Labels the values of a tool's result, by the rules in the tool's manifest entry.

A text without a label is untrusted. A field's label also holds for the fields below it. If the user's words name a
record (`names`), fields that the system writes become `named`. The texts and participants of the record do not become
`named`, because they may contain an injection. Object keys that are data count as values.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from pdp.errors import PdpError
from pdp.json import MAX_DEPTH, MAX_NUMBER, JsonValueError, parse_json, pointer_steps
from pdp.ledger.values import Prompt, is_numeric, normal, within
from pdp.manifest.model import ResultLabels, Tool
from pdp.manifest.schema.references import property_names

UNTRUSTED: Final = "untrusted"
_ISSUED: Final = ("trusted", "party")
_NAMEABLE: Final = ("trusted", "created")
_ANY: Final = "*"
_MOST_TEXT: Final = 1024 * 1024
_MOST_WITHIN: Final = 2_000
"""Limits of the characters that are searched and of the values that are found, so that no text fills the run."""

LABELS: Final = ("named", "created", "trusted", "party", UNTRUSTED)
"""Labels of results, best first."""

_RANKS: Final = {label: rank for rank, label in enumerate(LABELS)}
_LOWERED: Final = ("trusted", "party", "named")

_LONGEST_NAME: Final = 64
_MOST_WORDS: Final = 5
_ACCOUNT: Final = 7  # An account or telephone number has at least this many digits.

Reading = tuple[dict[str, str], list[str]]
"""The best label of each value of a result, keyed by its normal form, and the untrusted texts of the result."""


class ResultReader:
    """Labels the results of one tool. Immutable and thread-safe."""

    def __init__(self, entry: Tool) -> None:
        result = entry.result or ResultLabels()
        self.is_write = entry.has_effects
        self.markings = frozenset(result.markings or ())
        # The answer of a tool that writes is trusted only for the records that the tool created.
        paths = {"created": result.created, "name": result.names}
        if not self.is_write:
            paths = {"trusted": result.trusted, "party": result.parties, **paths}
        rules = [(pointer_steps(path), label) for label in paths for path in paths[label] or ()]
        # Keys that neither the schema nor a label names are treated as texts, because the author of the result may
        # choose them.
        self._names = property_names(entry.result_schema).union(*(steps for steps, _ in rules)) - {_ANY}
        # If two rules label a field, the later rule counts. The sort puts names after `*`, so a rule with a name
        # overrides one with `*`.
        rules.sort(key=lambda rule: [step != _ANY for step in rule[0]])
        trusted = result.integrity == "trusted" and not self.is_write
        self._labelled = _Field(rules, "trusted" if trusted else UNTRUSTED)

    def read(self, result: Any, prompt: Prompt, *, failed: bool = False, lowered: bool = False) -> Reading:
        """Return the label of each value in a result, including values inside texts, and the result's untrusted texts.

        With `failed`, the result is the untrusted text of a failure. With `lowered`, an argument was untrusted, so that
        only `created` values keep their label. Raises `JsonValueError` if the result is not JSON.
        """
        collector = _LabelCollector(prompt, self._names, is_write=self.is_write, lowered=lowered)
        if failed:
            collector.read_text(result, UNTRUSTED)
        else:
            collector.read(result, self._labelled)
        return collector.labels, collector.prose


class _Field:
    """A path in results: its label, and the rules and a cache for the longer paths that begin with this path."""

    def __init__(self, rules: list[tuple[tuple[str, ...], str]], label: str) -> None:
        self.label = next((label for steps, label in reversed(rules) if not steps and label != "name"), label)
        self.is_plain = not rules
        self.named_by = [steps[0] for steps, label in rules if len(steps) == 1 and label == "name"]
        self._rules, self._names = rules, {steps[0] for steps, _ in rules if steps}
        self.is_map = _ANY in self._names
        self._below: dict[str, _Field] = {}

    def below(self, key: str) -> _Field:
        """Return the path of an object's member. All keys that no rule names have one label and share one path."""
        name = key if key in self._names else _ANY
        field = self._below.get(name)
        if field is None:
            rules = [(steps[1:], label) for steps, label in self._rules if steps and steps[0] in (name, _ANY)]
            field = self._below.setdefault(name, _Field(rules, self.label))
        return field


class _LabelCollector:
    def __init__(self, prompt: Prompt, names: Container[str], *, is_write: bool, lowered: bool) -> None:
        self.labels: dict[str, str] = {}
        self.prose: list[str] = []
        self._prompt, self._names, self._is_write, self._lowered = prompt, names, is_write, lowered
        self._left, self._most = _MOST_TEXT, _MOST_WITHIN

    def read(self, value: Any, field: _Field, depth: int = 0, *, named: bool = False) -> None:
        """Label a value, or the JSON inside a text. `named` means that the user's words name the value's record."""
        kind = type(value)
        if kind is str:
            parsed = _parsed(value, depth) if value.startswith(("{", "[")) else None
            if parsed is None:
                self.read_text(value, field.label, named=named)
                return
            if field.is_plain and not self._is_write:
                # No rule describes the keys of JSON within a text, so the keys are treated as texts too.
                self._add("", field.label, value)
            self._read_parts(parsed, field, depth + 1, named=named)
        elif kind is int or kind is float:
            if not -MAX_NUMBER <= value <= MAX_NUMBER:
                raise JsonValueError(f"{value} is not a number of JSON")
            text = normal(value)
            self._add(text, "named" if named and field.label in _NAMEABLE else field.label, text)
        elif isinstance(value, list | dict) and depth < MAX_DEPTH:
            self._read_parts(value, field, depth + 1, named=named)
        elif value is not None and kind is not bool:
            raise JsonValueError(f"{kind.__name__} is not a type of JSON, or nested too deep")

    def _read_parts(self, value: list[Any] | dict[str, Any], field: _Field, depth: int, *, named: bool) -> None:
        if isinstance(value, list):
            for item in value:
                self.read(item, field, depth, named=named)
            return
        named = named or self._is_named(value, field)
        for key, item in value.items():
            if type(key) is not str:
                raise JsonValueError("a key is not a string")
            if field.is_map or key not in self._names:
                self.read_text(key, field.label, named=named)
            self.read(item, field if field.is_plain else field.below(key), depth, named=named)

    def _is_named(self, members: dict[str, Any], field: _Field) -> bool:
        names = members if _ANY in field.named_by else field.named_by
        texts = (members.get(name) for name in names)
        return any(isinstance(text, str) and self._prompt.names(normal(text)) for text in texts)

    def _add(self, value: str, label: str, text: str = "") -> None:
        """Store the label of a value unless the value has a better one. Also store an untrusted text."""
        if self._lowered and label in _LOWERED:
            label = UNTRUSTED
        if text and label == UNTRUSTED and ((value.isdigit() and len(value) >= _ACCOUNT) or not is_numeric(value)):
            self.prose.append(text)
        if value and _RANKS[label] <= _RANKS[self.labels.get(value, UNTRUSTED)]:
            self.labels[value] = label

    def read_text(self, text: str, label: str, *, named: bool = False) -> None:
        if label == "party" and not _is_name_like(text):
            label = UNTRUSTED
        self._add(normal(text), "named" if named and label in _NAMEABLE else label, text)
        if label != "created":
            inner_label = label if label in _ISSUED else UNTRUSTED
            for inner in islice(within(text[: self._left]), self._most):
                self._add(inner, inner_label)
                self._most -= 1
            self._left = max(0, self._left - len(text))


def _is_name_like(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and len(text.split()) <= _MOST_WORDS


def _parsed(text: str, depth: int) -> list[Any] | dict[str, Any] | None:
    """Return the array or object if a text is JSON, else None. The parsed fields are then labelled one by one."""
    if len(text) <= _MOST_TEXT:
        with suppress(JsonValueError, PdpError):
            parts: list[Any] | dict[str, Any] = parse_json(text, depth)
            return parts
    return None
