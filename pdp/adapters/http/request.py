"""A request over HTTP as the call of a tool: its route, its arguments, and the request that decided arguments make.

An application gets a request that is written from what was decided, so that it reads nothing else into it.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import orjson

from pdp.errors import UsageError
from pdp.execution.failures import ToolUnavailableError
from pdp.json import MAX_VALUES, JsonValueError, parse_json
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


_WITH_BODY: Final = frozenset(("PATCH", "POST", "PUT"))
_MOST_FIELDS: Final = 1000
# Of the body, which is written anew; and what would have the response encoded, which nobody could read then.
_DROPPED: Final = frozenset(
    (b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"transfer-encoding")
)


class RequestArguments(NamedTuple):
    """What a request asks: `path`, `query` and `body` are disjoint; `body` is None where it has none."""

    path: dict[str, Any]
    query: dict[str, Any]
    body: dict[str, Any] | None

    @property
    def all(self) -> dict[str, Any]:
        """All of them, by name."""
        return {**self.path, **self.query, **(self.body or {})}


def read_arguments(
    scope: Mapping[str, Any], body: bytes, path: Mapping[str, str], schema: Mapping[str, Any]
) -> RequestArguments:
    """Return a request's arguments; in path and query, texts become what the tool's schema says that they are.

    UsageError: they cannot be told for certain: a name that is there twice, a body that is not a JSON object.
    """
    stated = schema.get("properties", {})
    try:
        text = scope["query_string"].decode("ascii")
        asked: dict[str, list[str]] = {}
        for name, value in parse_qsl(text, True, True, errors="strict", max_num_fields=_MOST_FIELDS) if text else ():
            asked.setdefault(name, []).append(value)
        query = {name: _typed(name, texts, stated.get(name)) for name, texts in asked.items()}
        own = {name: _typed(name, [value], stated.get(name)) for name, value in path.items()}
        given = _object(scope, body) if body else None
    except (UnicodeError, ValueError) as error:
        raise UsageError(f"the request cannot be read: {error!s:.200}", hint="send it well-formed") from None
    found = RequestArguments(own, query, given)
    if len(found.all) < len(own) + len(query) + len(given or ()):
        raise UsageError("an argument is in the request twice", hint="state it once: in path, query or body")
    return found


def written(
    scope: Mapping[str, Any], route: Route, asked: RequestArguments, decided: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Return the scope and the body of the request with the decided arguments; each stays where it was.

    ToolUnavailableError: one cannot be written there, as text of a path with a slash in it.
    """
    path = {name: _text(name, decided.get(name)) for name in asked.path}
    if any(not text or text in (".", "..") or "/" in text for text in path.values()):
        raise ToolUnavailableError("an argument cannot be written in a path", details={"effect": "none"})
    others = {name: value for name, value in decided.items() if name not in path}
    has_body = asked.body is not None or (route.method in _WITH_BODY and not others.keys() <= asked.query.keys())
    query = {name: value for name, value in others.items() if name in asked.query or not has_body}
    pairs = [(name, _text(name, at)) for name, value in query.items() for at in _items(value)]
    body = orjson.dumps({name: value for name, value in others.items() if name not in query}) if has_body else b""
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in _DROPPED]
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))] if has_body else []
    before = scope["path"].removesuffix(local_path(scope))
    whole = before + route.path(path)
    return {
        **scope,
        "path": whole,
        "raw_path": quote(whole, safe="/").encode(),
        "query_string": urlencode(pairs).encode() if pairs else b"",
        "headers": [*kept, *own],
        "extensions": {},
    }, body


def local_path(scope: Mapping[str, Any]) -> str:
    """Return the path within the application: without the one that it is mounted at.

    Empty where a slash in it was encoded, and nobody knows what is meant.
    """
    path, root, raw = str(scope["path"]), str(scope.get("root_path", "")), scope.get("raw_path")
    if raw is not None and raw.partition(b"?")[0].count(b"/") != path.count("/"):
        return ""
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _object(scope: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    headers = [(name.lower(), value.decode("latin-1").lower()) for name, value in scope["headers"]]
    kinds = [value.partition(";")[0].strip() for name, value in headers if name == b"content-type"]
    coded = [value for name, value in headers if name == b"content-encoding" and value != "identity"]
    if kinds != ["application/json"] or coded:
        raise JsonValueError("its body is not plain application/json")
    value = parse_json(body, most=MAX_VALUES)
    if not isinstance(value, dict):
        raise JsonValueError("its body is no JSON object")
    return value


def _typed(name: str, texts: list[str], schema: Any) -> Any:
    stated = schema.get("type") if isinstance(schema, dict) else None
    kinds = {stated} if isinstance(stated, str) else set(stated or ())
    if "array" in kinds:
        return [_typed(name, [text], schema.get("items")) for text in texts]
    if len(texts) > 1:
        raise ValueError(f"{name:.60} is there twice")
    if not kinds or "string" in kinds:
        return texts[0]
    try:
        value = parse_json(texts[0])
    except JsonValueError:
        return texts[0]
    return value if isinstance(value, bool | int | float) else texts[0]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float):
        raise ToolUnavailableError(f"argument {name:.60} cannot be written as text", details={"effect": "none"})
    return json.dumps(value)
