"""A request's arguments, as they stand in its path, query and JSON body; and the request that decided arguments make.

What an application gets is written anew of what was decided, so that it reads nothing else into it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import orjson

from pdp.adapters.http.routes import Route
from pdp.errors import UsageError
from pdp.execution.failures import ToolUnavailableError
from pdp.json import MAX_VALUES, JsonValueError, parse_json

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
