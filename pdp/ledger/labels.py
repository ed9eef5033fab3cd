"""The labels of a result's values, by what the tool's entry says of its fields.

Every text that is not labelled is a stranger's. A field is labelled with all that is below it. Where the user's words
name a record (`names`), the fields of it that the system writes are `named`. Its texts are not, nor who
took part in it: the injection stands in the page that the user has named. Keys of an object that are data are values.
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
"""How many characters of a result's texts are searched for values, and how many are found: of a long text not so many
that the run is full. What stands behind has no source but the model."""

LABELS: Final = ("named", "created", "trusted", "party", UNTRUSTED)
"""The labels of results, the best first."""

_RANKS: Final = {label: rank for rank, label in enumerate(LABELS)}
_LOWERED: Final = ("trusted", "party", "named")

_LONGEST_NAME: Final = 64
_MOST_WORDS: Final = 5
_ACCOUNT: Final = 7  # digits that can be an account's or a telephone's

Reading = tuple[dict[str, str], list[str]]
"""The best label of each value of a result, by its normal form; and the texts of strangers in it."""


class ResultReader:
    """Labels the results of one tool. Immutable, safe to share."""

    def __init__(self, entry: Tool) -> None:
        result = entry.result or ResultLabels()
        self.is_write = entry.has_effects
        self.markings = frozenset(result.markings or ())
        # A write is believed what it made, and nothing else.
        paths = {"created": result.created, "name": result.names}
        if not self.is_write:
            paths = {"trusted": result.trusted, "party": result.parties, **paths}
        rules = [(pointer_steps(path), label) for label in paths for path in paths[label] or ()]
        # Keys that neither the schema nor a label states are texts: whoever writes the result may choose them.
        self._names = property_names(entry.result_schema).union(*(steps for steps, _ in rules)) - {_ANY}
        # Of two that label a field, the later one counts: that of a name over that of any member.
        rules.sort(key=lambda rule: [step != _ANY for step in rule[0]])
        trusted = result.integrity == "trusted" and not self.is_write
        self._labelled = _Field(rules, "trusted" if trusted else UNTRUSTED)

    def read(self, result: Any, prompt: Prompt, *, failed: bool = False, lowered: bool = False) -> Reading:
        """Return the labels of a result's values, those within its texts as well, and the texts of strangers.

        `failed`: it is the text of a failure, which no schema bounds: it may quote what the tool was not to return.
        `lowered`: the tool was asked with a stranger's words, so that only what it made keeps its label.
        JsonValueError: it is not JSON, and nobody knows what it says.
        """
        walk = _Walk(prompt, self._names, is_write=self.is_write, lowered=lowered)
        if failed:
            walk.read_text(result, UNTRUSTED)
        else:
            walk.read(result, self._labelled)
        return walk.labels, walk.prose


class _Field:
    """A place in results: its label, by the rules for it and for what is below it, and those places, each made once."""

    def __init__(self, rules: list[tuple[tuple[str, ...], str]], label: str) -> None:
        self.label = next((label for steps, label in reversed(rules) if not steps and label != "name"), label)
        self.is_plain = not rules
        self.named_by = [steps[0] for steps, label in rules if len(steps) == 1 and label == "name"]
        self._rules, self._names = rules, {steps[0] for steps, _ in rules if steps}
        self.is_map = _ANY in self._names
        self._below: dict[str, _Field] = {}

    def below(self, key: str) -> _Field:
        """Return the place of a member; all those that no path names have one, however many keys results have."""
        name = key if key in self._names else _ANY
        field = self._below.get(name)
        if field is None:
            rules = [(steps[1:], label) for steps, label in self._rules if steps and steps[0] in (name, _ANY)]
            field = self._below.setdefault(name, _Field(rules, self.label))
        return field


class _Walk:
    """One walk through a result."""

    def __init__(self, prompt: Prompt, names: Container[str], *, is_write: bool, lowered: bool) -> None:
        self.labels: dict[str, str] = {}
        self.prose: list[str] = []
        self._prompt, self._names, self._is_write, self._lowered = prompt, names, is_write, lowered
        self._left, self._most = _MOST_TEXT, _MOST_WITHIN

    def read(self, value: Any, field: _Field, depth: int = 0, *, named: bool = False) -> None:
        """Read a value, or what a text stands for; `named`: the user's words name the record that it stands in."""
        kind = type(value)
        if kind is str:
            parsed = _parsed(value, depth) if value.startswith(("{", "[")) else None
            if parsed is None:
                self.read_text(value, field.label, named=named)
                return
            if field.is_plain and not self._is_write:
                # Nobody has said what its keys are: they are somebody's words as well.
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
        """Add a value, of its labels the best one, and the text that it is: prose, unless it is a sum."""
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
    """Return whether a text can be the name of somebody, and not what they have to say."""
    return len(text) <= _LONGEST_NAME and len(text.split()) <= _MOST_WORDS


def _parsed(text: str, depth: int) -> list[Any] | dict[str, Any] | None:
    """Return what a text stands for that is JSON itself, as a part of a value: its fields are no prose."""
    if len(text) <= _MOST_TEXT:
        with suppress(JsonValueError, PdpError):
            parts: list[Any] | dict[str, Any] = parse_json(text, depth)
            return parts
    return None
