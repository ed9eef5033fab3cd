"""Which member of `roles` applies to a value: the name of an argument, or a JSON Pointer to a part of one."""

from collections.abc import Iterable
from typing import Final

from pdp.json import pointer_steps

_ANY: Final = "*"


class RoleNames:
    """Finds the member of `roles` that gives a value its role: the most precise pointer, or else the argument's name.

    Examples:
        >>> names = RoleNames({"files": "body", "/files/*/path": "object", "/files/0": "value"})
        >>> names.of("/files/0/path"), names.of("/files/0/kind"), names.of("/other")
        ('/files/*/path', '/files/0', None)
    """

    def __init__(self, roles: Iterable[str]) -> None:
        self._names = frozenset(roles)
        paths = [(pointer_steps(name), name) for name in self._names if name.startswith("/")]
        # The longest pointer is the most precise one, and of two such pointers the one with a name in place of `*`.
        self._paths = sorted(paths, key=lambda path: (len(path[0]), [step != _ANY for step in path[0]]), reverse=True)

    def of(self, path: str) -> str | None:
        """Return the name or pointer that applies to a value's path, or None."""
        steps = pointer_steps(path)
        for rule, name in self._paths:
            if len(rule) <= len(steps) and all(part in (_ANY, step) for part, step in zip(rule, steps, strict=False)):
                return name
        return steps[0] if steps and steps[0] in self._names else None
