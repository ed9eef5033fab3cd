"""What a client sends, read strictly: known events alone, every field of its type, bounded."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.hooks.call import HookCall, HookInputError, Moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.hooks.call import BuiltIn

_TOOL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_ID: Final = re.compile(r"[A-Za-z0-9_.:|-]{1,256}")
_LONGEST_PATH: Final = 4096


class Event(NamedTuple):
    """What an event of a client is for. `failed`: the tool has run, and failed."""

    moment: Moment
    failed: bool = False


class Keys(NamedTuple):
    """How a client spells what it sends; `call`: None where it gives calls no id."""

    session: str = "session_id"
    call: str | None = "tool_use_id"
    event: str = "hook_event_name"
    tool: str = "tool_name"
    arguments: str = "tool_input"
    result: str = "tool_response"


_SNAKE: Final = Keys()


def read_call(
    client: str, body: Any, events: Mapping[str, Event], built_in: Mapping[str, BuiltIn], keys: Keys = _SNAKE
) -> HookCall:
    """Return the call that a client tells of; HookInputError: it is none, or not of one of the events."""
    if not isinstance(body, dict):
        raise HookInputError(f"{client}: expected a JSON object but got {type(body).__name__}")
    event = events.get(name) if isinstance(name := body.get(keys.event), str) else None
    if event is None:
        raise HookInputError(
            f"{client}: {keys.event}: expected one of {', '.join(events)} but got {_shown(name)}",
            hint="run `pdp hook check`",
        )
    # A client may leave the id of a call out of an event in which nothing runs.
    call_id = keys.call if keys.call and (event.moment is not Moment.PERMISSION or keys.call in body) else None
    tool = _text(client, body, keys.tool, _TOOL)
    arguments = body.get(keys.arguments)
    if not isinstance(arguments, dict):
        raise HookInputError(f"{client}: {keys.arguments}: expected an object but got {_shown(arguments)}")
    return HookCall(
        client=client,
        moment=event.moment,
        session_id=_text(client, body, keys.session, _ID),
        call_id=_text(client, body, call_id, _ID) if call_id else None,
        tool=tool,
        arguments=arguments,
        cwd=_folder(client, body.get("cwd")),
        built_in=built_in.get(tool),
        executed=body.get(keys.result) if event.moment is Moment.AFTER and not event.failed else None,
        failed=event.failed,
    )


def _text(client: str, body: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise HookInputError(f"{client}: {key}: expected a text like {pattern.pattern} but got {_shown(value)}")
    return value


def _folder(client: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or len(value) > _LONGEST_PATH
        or not value.isprintable()
        or not PurePath(value).is_absolute()
    ):
        raise HookInputError(f"{client}: cwd: expected the absolute path of a folder but got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Return the value as ASCII, a part of it at most; of containers the type alone."""
    if value is None or isinstance(value, str | bool | int | float):
        return ascii(value[:80] if isinstance(value, str) else value)[:100]
    return f"an {'object' if isinstance(value, dict) else 'array'}"
