"""A JSON object that nobody can change: what state and config are handed around as."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import orjson

from pdp.errors import UsageError
from pdp.json import JsonValueError, canonical, check_json


class JsonObject(Mapping[str, Any]):
    """Members by name, plain JSON. Whatever is read of it is a copy, so that writing to it changes nothing here.

    Two are equal when their RFC 8785 forms are. It is read with `read`, and written with `replaced` and `without`,
    which return another one.
    """

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[str, bytes] = {}

    @classmethod
    def read(cls, value: Mapping[str, Any] | None, what: str = "state") -> Self:
        """Return `value`, plain JSON, as such an object; None is the empty one.

        Raises:
            UsageError: no object, or not JSON; `what` names it in the message.
        """
        if isinstance(value, cls):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{what} is {type(value).__name__}, not an object", hint="hand in names with values")
        plain = value.as_json() if isinstance(value, JsonObject) else dict(value or {})
        try:
            check_json(plain)
        except JsonValueError as error:
            raise UsageError(f"{what}: {error}", hint="it is made of plain JSON") from None
        return cls._made_of({name: canonical(one) for name, one in plain.items()})

    @classmethod
    def _made_of(cls, members: dict[str, bytes]) -> Self:
        made = cls()
        made._members = members
        return made

    def replaced(self, members: Mapping[str, Any], what: str = "state") -> Self:
        """Return one with these members in the place of those of the same names.

        Raises:
            UsageError: as by `read`.
        """
        other = type(self).read(members, what)
        return self._made_of(self._members | other._members)  # noqa: SLF001 - one of its own kind

    def without(self, names: frozenset[str]) -> Self:
        """Return one that lacks these members."""
        return self._made_of({name: text for name, text in self._members.items() if name not in names})

    def text(self, name: str) -> str:
        """Return a member as RFC 8785 text.

        Raises:
            KeyError: there is none.
        """
        return self._members[name].decode()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON, a copy."""
        return {name: orjson.loads(text) for name, text in self._members.items()}

    def __getitem__(self, name: str) -> Any:
        return orjson.loads(self._members[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __eq__(self, other: object) -> bool:
        return self._members == other._members if isinstance(other, JsonObject) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._members.items()))

    def __repr__(self) -> str:
        return f"JsonObject({self.as_json()!r})"
