"""The labels of a result's values, by what the tool's entry says of its fields.

Every text that is not labelled is a stranger's. A field is labelled with all that is below it. Where the user's words
name a record (`names`), the fields of it that the system writes are `named`. Its texts are not, nor who
took part in it: the injection stands in the page that the user has named. Keys of an object that are data are values.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.errors import PdpError
from pdp.json import JsonValueError, parse_json
from pdp.ledger.values import Prompt, is_numeric, normal, within

if TYPE_CHECKING:
    from pdp.manifest.model import ResultLabels, Tool

UNTRUSTED: Final = "untrusted"
_ISSUED: Final = ("trusted", "party")
_NAMEABLE: Final = ("trusted", "created")
_ANY: Final = "*"
_MOST_TEXT: Final = 1024 * 1024
_MOST_WITHIN: Final = 2_000
"""How many characters of a result's texts are searched for values, and how many are found: of a long text not so many
that the run is full. What stands behind has no source but the model."""


_LONGEST_NAME: Final = 64
_LONGEST_KEY: Final = 32  # of a field; what is longer says something
_MOST_WORDS: Final = 5

Node = dict[str, Any]
_LABEL: Final = ""
_NAME: Final = "\0name"


class LabelledValue(NamedTuple):
    """A value of a result in its normal form, and its label; `text` is the whole text, if it is one and no number.

    A text that is too long for a value has an empty `value`.
    """

    value: str
    label: str
    text: str = ""


class ResultReader:
    """Labels the results of one tool. Immutable, safe to share."""

    __slots__ = ("_default", "_root", "is_write", "markings")

    def __init__(self, entry: Tool) -> None:
        result: ResultLabels | None = entry.result
        self.is_write = entry.has_effects
        self.markings: tuple[str, ...] = tuple(result.markings or ()) if result else ()
        trusted = result is not None and result.integrity == "trusted" and not self.is_write
        self._default = "trusted" if trusted else UNTRUSTED
        self._root: Node = {}
        if result is not None:
            # Of two that label a field, the later one counts. A write is believed what it made, and nothing else.
            labels = {"created": result.created}
            if not self.is_write:
                labels = {"trusted": result.trusted, "party": result.parties, **labels}
            for label, paths in labels.items():
                for path in paths or ():
                    self._node(path)[_LABEL] = label
            for path in result.names or ():
                self._node(path)[_NAME] = True

    def _node(self, path: str) -> Node:
        node = self._root
        for name in path.split("/")[1:]:
            node = node.setdefault(name.replace("~1", "/").replace("~0", "~"), {})
        return node

    def read(self, result: Any, prompt: Prompt, *, failed: bool = False) -> list[LabelledValue]:
        """Return the values of a result with their labels, and those within its texts; a value may come up twice.

        `failed`: it is the text of a failure, which no schema bounds: it may quote what the tool was not to return.
        """
        walk = _Walk(prompt, is_write=self.is_write)
        if failed:
            walk.read(result, [], UNTRUSTED, named=False)
            return walk.values
        walk.read_parsed(result, [self._root], self._default, named=False)
        return walk.values


class _Walk:
    """One walk through a result."""

    def __init__(self, prompt: Prompt, *, is_write: bool) -> None:
        self.values: list[LabelledValue] = []
        self._prompt, self._is_write = prompt, is_write
        self._left, self._most = _MOST_TEXT, _MOST_WITHIN

    def read_parsed(self, value: Any, nodes: list[Node], label: str, *, named: bool) -> None:
        """Read a value, or what it stands for; of a text without labels, its keys are somebody's words as well."""
        parsed = _parsed(value)
        if parsed is not value and not any(nodes) and not self._is_write:
            self.values.append(LabelledValue("", label, value))
        self.read(parsed, nodes, label, named=named)

    def read(self, value: Any, nodes: list[Node], label: str, *, named: bool) -> None:
        label = _label(nodes, label)
        if isinstance(value, str):
            self._read_text(value, label, named=named)
        elif isinstance(value, list | tuple):
            for item in value:
                self.read(item, nodes, label, named=named)
        elif isinstance(value, dict):
            below = {key: _below(nodes, key) for key in value}
            texts = ((node, item) for key, item in value.items() for node in below[key] if isinstance(item, str))
            named = named or any(_NAME in node and self._prompt.names(normal(item)) for node, item in texts)
            is_map = any(_ANY in node for node in nodes)
            for key, item in value.items():
                if is_map or not key.isidentifier() or len(key) > _LONGEST_KEY:
                    self._read_text(key, label, named=named)
                self.read_parsed(item, below[key], label, named=named)
        elif value is not None and not isinstance(value, bool):
            self.values.append(LabelledValue(normal(value), "named" if named and label in _NAMEABLE else label))

    def _read_text(self, text: str, label: str, *, named: bool) -> None:
        if label == "party" and not _is_name_like(text):
            label = UNTRUSTED
        value = normal(text)
        own_label = "named" if named and label in _NAMEABLE else label
        self.values.append(LabelledValue(value, own_label, "" if is_numeric(value) else text))
        if label != "created":
            inner_label = label if label in _ISSUED else UNTRUSTED
            inner = [LabelledValue(value, inner_label) for value in islice(within(text[: self._left]), self._most)]
            self.values += inner
            self._most -= len(inner)
            self._left = max(0, self._left - len(text))


def _label(nodes: list[Node], default: str) -> str:
    """Return the label of the first node that has one."""
    return next((str(node[_LABEL]) for node in nodes if _LABEL in node), default)


def _is_name_like(text: str) -> bool:
    """Return whether a text can be the name of somebody, and not what they have to say."""
    return len(text) <= _LONGEST_NAME and len(text.split()) <= _MOST_WORDS


def _below(nodes: list[Node], key: str) -> list[Node]:
    return nodes and [node[name] for node in nodes for name in (key, _ANY) if name in node]


def _parsed(value: Any) -> Any:
    """Return what a text stands for that is JSON itself: its fields are no prose."""
    if isinstance(value, str) and value[:1] in "{[" and len(value) <= _MOST_TEXT:
        with suppress(JsonValueError, PdpError):
            return parse_json(value)
    return value
