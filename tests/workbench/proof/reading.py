"""Read a term of a proof on concrete documents: whether a formula holds for this `input` and this `data`.

The reading knows the vocabulary of `pdp.workbench.proof.values` and nothing of Rego.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pdp.workbench.proof.terms import Term
from tests.workbench.proof import builtins
from tests.workbench.proof.documents import RANK, Value, Values, compared, entries_of, items_of

_COLLECTIONS: Final = frozenset(("arr", "obj", "set"))


class ConflictError(Exception):
    """An object comprehension has two values for a key, which is an error in OPA."""


class _Node:
    """A term in the form that is read. `slots` are the bound variables in it."""

    __slots__ = ("args", "items", "op", "slots", "work")

    def __init__(self, term: Term, args: tuple[Any, ...]) -> None:
        self.op, self.args, self.items = term.op, args, term.items
        self.slots = tuple(sorted(-number for number in term.free))
        self.work = _WORK[term.op]


class Reading:
    """Reads terms. It keeps what it has compiled, so one reading serves all requests."""

    def __init__(self) -> None:
        self._nodes: dict[Term, _Node] = {}

    def node(self, term: Term) -> _Node:
        """Return a term in the form that is read."""
        if term not in self._nodes:
            args = tuple(self.node(arg) if isinstance(arg, Term) else arg for arg in term.args)
            self._nodes[term] = _Node(term, args)
        return self._nodes[term]

    def on(self, given: Any, data: Any, *, broken: bool = False) -> Documents:
        """Return the documents of a request. With `broken`, a literal with an undefined part has a value."""
        return Documents(self, given, data, broken=broken)


class Documents:
    """The documents `input` and `data` of one request, and the values of the terms that were read on them."""

    def __init__(self, reading: Reading, given: Any, data: Any, *, broken: bool) -> None:
        self.values = Values()
        self.broken = self.values.set([self.values.null]) if broken else self.values.undef
        self.input, self.data = self.values.json(given), self.values.json(data)
        self.bound: dict[int, Value] = {}
        self._reading = reading
        self._known: dict[Any, Any] = {}

    def read(self, term: Term) -> Any:
        """Return the truth of a formula, or the value of another term."""
        return self.value(self._reading.node(term))

    def value(self, node: _Node) -> Any:
        """Return the truth of a formula, or the value of another term."""
        key: Any = (node, *[self.bound[slot] for slot in node.slots]) if node.slots else node
        if key in self._known:
            return self._known[key]
        value = self._known[key] = node.work(self, node)
        return value

    def iterated(self, node: _Node) -> Iterator[None]:
        """Bind the variable of a quantifier to each element or key of its collection in turn."""
        slot, holder = node.args[0], self.value(node.args[1])
        keyed = node.op.endswith("key")
        before = self.bound.get(slot)
        for key, item in entries_of(holder):
            self.bound[slot] = key if keyed else item
            yield
        if before is not None:
            self.bound[slot] = before

    def pairs(self, node: _Node) -> list[tuple[Value, Value]]:
        """Return the keys and items that the body of a collection describes, in order."""
        if not node.items:
            return []
        match node.op:
            case "item":
                return [(self.value(node.args[0]), self.value(node.args[1]))]
            case "or":
                return [pair for arg in node.args for pair in self.pairs(arg)]
            case "and" | "seq":
                conditions = [arg for arg in node.args if not arg.items]
                (inner,) = (arg for arg in node.args if arg.items)
                return self.pairs(inner) if all(map(self.value, conditions)) else []
            case "exists" | "existskey" | "each" | "eachkey":
                return [pair for _ in self.iterated(node) for pair in self.pairs(node.args[2])]
        raise ValueError(f"an item inside of {node.op}")


def _collect(documents: Documents, node: _Node) -> Value:
    kind, pairs = node.args[0], documents.pairs(node.args[1])
    if kind == "obj":
        if len(dict(pairs)) != len(set(pairs)):
            raise ConflictError
        return documents.values.object(pairs)
    items = [item for _, item in pairs]
    return documents.values.set(items) if kind == "set" else documents.values.array(items)


def _literal(documents: Documents, node: _Node) -> Value:
    items = [documents.value(arg) for arg in node.args]
    if any(item.kind == "undef" for item in items):
        # A formula says elsewhere that the parts are defined, so it must not depend on this value.
        return documents.broken
    if node.op == "obj":
        return documents.values.object(zip(items[::2], items[1::2], strict=True))
    return documents.values.array(items) if node.op == "arr" else documents.values.set(items)


def _get(documents: Documents, node: _Node) -> Value:
    return documents.values.get(documents.value(node.args[0]), documents.value(node.args[1]))


def _size(documents: Documents, node: _Node) -> Value:
    value = documents.value(node.args[0])
    if value.kind == "str":
        return documents.values.number(len(value.held))
    return documents.values.number(len(value.entries)) if value.kind in _COLLECTIONS else documents.values.undef


def _call(documents: Documents, node: _Node) -> Value:
    return builtins.call(node.args[0], documents.values, tuple(map(documents.value, node.args[1:])))


def _equal(documents: Documents, node: _Node) -> bool:
    one, other = map(documents.value, node.args)
    return one is other and one.kind != "undef"


def _less(documents: Documents, node: _Node) -> bool:
    one, other = map(documents.value, node.args)
    return one.kind in RANK and other.kind in RANK and compared(one, other) < 0


def _member(documents: Documents, node: _Node) -> bool:
    item, holder = map(documents.value, node.args)
    return item.kind != "undef" and item in items_of(holder)


def _exists(documents: Documents, node: _Node) -> bool:
    found = [documents.value(node.args[2]) for _ in documents.iterated(node)]
    return any(found)


_WORK: Final[dict[str, Callable[[Documents, _Node], Any]]] = {
    "undef": lambda documents, _: documents.values.undef,
    "null": lambda documents, _: documents.values.null,
    "num": lambda documents, node: documents.values.number(node.args[0]),
    "str": lambda documents, node: documents.values.text(node.args[0]),
    "boolean": lambda documents, node: documents.values.json(documents.value(node.args[0])),
    "input": lambda documents, _: documents.input,
    "data": lambda documents, _: documents.data,
    "arr": _literal,
    "set": _literal,
    "obj": _literal,
    "get": _get,
    "size": _size,
    "ite": lambda documents, node: documents.value(node.args[1 if documents.value(node.args[0]) else 2]),
    "call": _call,
    "bound": lambda documents, node: documents.bound[node.args[0]],
    "collect": _collect,
    "yes": lambda *_: True,
    "no": lambda *_: False,
    "and": lambda documents, node: all(documents.value(arg) for arg in node.args),
    "or": lambda documents, node: any(documents.value(arg) for arg in node.args),
    "not": lambda documents, node: not documents.value(node.args[0]),
    "defined": lambda documents, node: documents.value(node.args[0]).kind != "undef",
    "holds": lambda documents, node: (
        documents.value(node.args[0]) not in (documents.values.undef, documents.values.false)
    ),
    "is": lambda documents, node: documents.value(node.args[1]).kind == node.args[0],
    "eq": _equal,
    "less": _less,
    "member": _member,
    "exists": _exists,
    "existskey": _exists,
    "def": lambda documents, node: documents.value(node.args[1]),
    # Parts of the body of a collection, which `pairs` reads.
    "item": lambda *_: True,
    "seq": lambda *_: True,
    "each": lambda *_: True,
    "eachkey": lambda *_: True,
}
