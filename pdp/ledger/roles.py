"""The roles of the values in a call's arguments, as the tool's manifest entry states them.

A role of an argument holds for all values in it. A role of a JSON Pointer, such as `/attachments/*/path`, holds for the
values below this path. An argument that equals its schema's default has no role, because a call without the argument
would do the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pdp.json import canonical, pointer
from pdp.ledger.values import Leaf, leaf_values, normal
from pdp.manifest.model import Tool
from pdp.manifest.roles import RoleNames

TARGETS: Final = ("destination", "object")
_ENDORSED_ALONE: Final = TARGETS[0]


class Placed(NamedTuple):
    """A value in the arguments with its role.

    `place` is the name of the argument, or the path of the value if a JSON Pointer gives it its role.
    """

    leaf: Leaf
    role: str | None
    place: str


class Roles:
    """The roles of one tool's arguments. `names` are the property names of the tool's schema. Immutable."""

    __slots__ = ("_defaults", "_has_pointers", "_names", "_of", "_roles", "used")

    def __init__(self, entry: Tool, names: frozenset[str]) -> None:
        # Ids are computed from the roles, so the roles are converted to plain strings.
        self._roles = {name: str(role) for name, role in (entry.roles or {}).items()}
        self.used, self._of, self._names = frozenset(self._roles.values()), RoleNames(self._roles).of, names
        self._has_pointers = any(name.startswith("/") for name in self._roles)
        properties = entry.schema_.get("properties", {})
        stated = {name: part for name, part in properties.items() if isinstance(part, Mapping) and "default" in part}
        self._defaults = {name: canonical(part["default"]) for name, part in stated.items()}

    def placed(self, arguments: Mapping[str, Any]) -> Iterator[Placed]:
        """Yield the texts and numbers in the arguments, and the object keys that the schema does not name."""
        for argument, value in arguments.items():
            if argument in self._defaults and canonical(value) == self._defaults[argument]:
                continue
            for leaf in leaf_values(value, pointer(argument), self._names):
                name = (self._has_pointers and self._of(leaf.path)) or argument
                yield Placed(leaf, self._roles.get(name), leaf.path if name.startswith("/") else argument)

    def beside(self, listed: Iterable[Placed], most: int) -> Callable[[Placed], list[str]]:
        """Return a function: the destinations and objects together with which an approval endorses a value.

        Arguments beyond `most` are not listed in the request and count as untrusted, even if a person endorsed them.
        """
        targets = sorted((_order(each), each.place, normal(each.leaf.value)) for each in listed if each.role in TARGETS)
        texts = [[part for order, *pair in targets[:most] if order < last for part in pair] for last in range(3)]
        # In a list of records, a value belongs to the target of its own record, so its path counts too.
        return lambda each: [
            *([each.place] if each.place.startswith("/") and each.role != _ENDORSED_ALONE else ()),
            *texts[_order(each)],
        ]


def _order(placed: Placed) -> int:
    return TARGETS.index(placed.role) if placed.role in TARGETS else len(TARGETS)
