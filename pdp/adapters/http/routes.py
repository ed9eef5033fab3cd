"""Which tool a method and path stand for, as the user says it or an OpenAPI document does."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from pdp.errors import UsageError
from pdp.manifest.foreign.openapi import operations

OPEN: Final = ""
"""In the place of a tool: the route is none."""

_METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "WEBSOCKET"))
_SEGMENT: Final = re.compile(r"\{([A-Za-z_]\w*)\}|[^{}]*")


class Route(NamedTuple):
    """A method and a path of `segments`; those in braces have a value. `tool`: its name, or OPEN."""

    method: str
    segments: tuple[str, ...]
    tool: str

    def values(self, segments: list[str]) -> dict[str, str] | None:
        """Return the values in a path; None: it is another one."""
        values = {}
        for name, value in zip(self.segments, segments, strict=True):
            if name[:1] == "{" and value not in ("", ".", ".."):
                values[name[1:-1]] = value
            elif name != value:
                return None
        return values

    def path(self, values: Mapping[str, str]) -> str:
        """Return the path with these values, not encoded."""
        return "/".join(values[name[1:-1]] if name[:1] == "{" else name for name in self.segments)


class ToolRoutes:
    """The routes of an application, by `METHOD /path/{argument}`: those of tools, and those that are open.

    UsageError: it cannot be read.
    """

    def __init__(self, tools: Mapping[str, str], is_open: Collection[str]) -> None:
        both = {*tools}.intersection(is_open)
        if both:
            raise UsageError(f"{min(both)}: is of a tool and open", hint="state it once")
        stated = {**tools, **dict.fromkeys(is_open, OPEN)}
        self._routes: dict[tuple[str, int], list[Route]] = {}
        for text, tool in stated.items():
            route = _route(text, tool)
            self._routes.setdefault((route.method, len(route.segments)), []).append(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the route of a request and the values in its path; None: there is none, or there are several."""
        segments = path.split("/")
        found = [
            (route, values)
            for route in self._routes.get((method, len(segments)), ())
            if (values := route.values(segments)) is not None
        ]
        return found[0] if len(found) == 1 else None


def tools_of_openapi(document: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the routes of an OpenAPI 3 document with their `operationId`, and of each the schema of its arguments.

    UsageError: it is not one, or an operation cannot be read.
    """
    tools = [each for each in operations(document, headers=False) if each.id is not None]
    for fault in (f"{each.id}: {each.fault}" for each in tools if each.fault):
        raise UsageError(fault, hint="correct the document, or name the routes without it")
    return {f"{at.method} {at.path}": str(at.id) for at in tools}, {str(at.id): at.schema for at in tools}


def _route(text: str, tool: str) -> Route:
    method, _, path = text.partition(" ")
    segments = tuple(path.split("/"))
    if method not in _METHODS or not path.startswith("/") or not all(map(_SEGMENT.fullmatch, segments)):
        raise UsageError(
            f"{text!r:.100}: no route", hint="write it as POST /wires/{id}, an argument for a whole segment"
        )
    return Route(method, segments, tool)
