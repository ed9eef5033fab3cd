"""Read an HTTP request as a tool call, and write a new request that holds only the decided arguments."""

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
"""The value of `Route.tool` for an open route, whose requests pass without a decision."""

_METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "WEBSOCKET"))
_SEGMENT: Final = re.compile(r"\{([A-Za-z_]\w*)\}|[^{}]*")


class Route(NamedTuple):
    """An HTTP method and a path's `segments`. Segments in braces match any value. `tool` is a tool's name or OPEN."""

    method: str
    segments: tuple[str, ...]
    tool: str

    def values(self, segments: list[str]) -> dict[str, str] | None:
        """Return the values of the segments in braces, or None if the path does not match."""
        values = {}
        for name, value in zip(self.segments, segments, strict=True):
            if name[:1] == "{" and value not in ("", ".", ".."):
                values[name[1:-1]] = value
            elif name != value:
                return None
        return values

    def path(self, values: Mapping[str, str]) -> str:
        """Return the path with `values` in place of the braces, without percent-encoding."""
        return "/".join(values[name[1:-1]] if name[:1] == "{" else name for name in self.segments)


class ToolRoutes:
    """The routes of an application, each written as `METHOD /path/{argument}`.

    `tools` has the tool of each route. Routes in `is_open` pass undecided. A route in both is a `UsageError`.
    """

    def __init__(self, tools: Mapping[str, str], is_open: Collection[str]) -> None:
        both = {*tools}.intersection(is_open)
        if both:
            raise UsageError(
                f"route {min(both)!r} is in `tools` and in `is_open`",
                hint="remove the route from `tools` or from `is_open`",
            )
        stated = {**tools, **dict.fromkeys(is_open, OPEN)}
        self._routes: dict[tuple[str, int], list[Route]] = {}
        for text, tool in stated.items():
            route = _route(text, tool)
            self._routes.setdefault((route.method, len(route.segments)), []).append(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the route of a request and the values in its path, or None unless exactly one route matches."""
        segments = path.split("/")
        found = [
            (route, values)
            for route in self._routes.get((method, len(segments)), ())
            if (values := route.values(segments)) is not None
        ]
        return found[0] if len(found) == 1 else None


def tools_of_openapi(document: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the tool (`operationId`) of each route, and each tool's schema. Raise `UsageError` for faults."""
    tools = [each for each in operations(document, headers=False) if each.id is not None]
    for fault in (f"{each.id}: {each.fault}" for each in tools if each.fault):
        raise UsageError(fault, hint="correct the OpenAPI document, or list the routes and tools by hand")
    return {f"{at.method} {at.path}": str(at.id) for at in tools}, {str(at.id): at.schema for at in tools}


def _route(text: str, tool: str) -> Route:
    method, _, path = text.partition(" ")
    segments = tuple(path.split("/"))
    if method not in _METHODS or not path.startswith("/") or not all(map(_SEGMENT.fullmatch, segments)):
        raise UsageError(
            f"{text!r:.100} is not a route",
            hint="write a route such as POST /wires/{id}; an argument must be a whole path segment",
        )
    return Route(method, segments, tool)


_WITH_BODY: Final = frozenset(("PATCH", "POST", "PUT"))
_MOST_FIELDS: Final = 1000
# The body is rewritten, so headers that describe the old body are dropped. A compressed response cannot be read here,
# so `accept-encoding` is dropped as well.
_DROPPED: Final = frozenset(
    (b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"transfer-encoding")
)


class RequestArguments(NamedTuple):
    """The arguments of a request, by source. A name occurs in one source only. If there is no body, `body` is None."""

    path: dict[str, Any]
    query: dict[str, Any]
    body: dict[str, Any] | None

    @property
    def all(self) -> dict[str, Any]:
        """All arguments, by name."""
        return {**self.path, **self.query, **(self.body or {})}


def read_arguments(
    scope: Mapping[str, Any], body: bytes, path: Mapping[str, str], schema: Mapping[str, Any]
) -> RequestArguments:
    """Return a request's arguments, typed by the tool's schema. Raise `UsageError` for a malformed request."""
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
        raise UsageError(
            f"malformed request: {error!s:.200}", hint="send a JSON object, and each argument once"
        ) from None
    found = RequestArguments(own, query, given)
    if len(found.all) < len(own) + len(query) + len(given or ()):
        raise UsageError(
            "an argument is in the request twice", hint="send each argument once, in the path, the query or the body"
        )
    return found


def decided_request(
    scope: Mapping[str, Any], route: Route, asked: RequestArguments, decided: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Return ASGI scope and body with the decided arguments. Raise `ToolUnavailableError` if this is impossible."""
    path = {name: _text(name, decided.get(name)) for name in asked.path}
    if any(not text or text in (".", "..") or "/" in text for text in path.values()):
        raise ToolUnavailableError(
            "an argument of the decided call cannot be written into the URL's path", details={"effect": "none"}
        )
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
    """Return the path within the application's mount; an empty text if an encoded slash makes it ambiguous."""
    path, root, raw = str(scope["path"]), str(scope.get("root_path", "")), scope.get("raw_path")
    if raw is not None and raw.partition(b"?")[0].count(b"/") != path.count("/"):
        return ""
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _object(scope: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    headers = [(name.lower(), value.decode("latin-1").lower()) for name, value in scope["headers"]]
    kinds = [value.partition(";")[0].strip() for name, value in headers if name == b"content-type"]
    coded = [value for name, value in headers if name == b"content-encoding" and value != "identity"]
    if kinds != ["application/json"] or coded:
        raise JsonValueError("the body is not plain application/json")
    value = parse_json(body, most=MAX_VALUES)
    if not isinstance(value, dict):
        raise JsonValueError("the body is not a JSON object")
    return value


def _typed(name: str, texts: list[str], schema: Any) -> Any:
    stated = schema.get("type") if isinstance(schema, dict) else None
    kinds = {stated} if isinstance(stated, str) else set(stated or ())
    if "array" in kinds:
        return [_typed(name, [text], schema.get("items")) for text in texts]
    if len(texts) > 1:
        raise ValueError(f"{name:.60} is in the query more than once, but is not a list")
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
