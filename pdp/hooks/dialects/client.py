"""What clients have in common: input read strictly, texts safe for a model and a terminal, a denial they all take."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, HookInputError, Moment, Output

_TOOL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_ID: Final = re.compile(r"[A-Za-z0-9_.:|-]{1,256}")
_PATH: Final = re.compile(r"/[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4095}")
_LONGEST: Final = 4000


def reason(answer: HookAnswer) -> str:
    """Return why a call does not run, and what to call in its place; never empty, without control characters."""
    text = "".join(letter if letter.isprintable() else " " for letter in answer.message)
    text = " ".join(text.split()) or "The policy does not allow this call."
    if answer.behaviour is Behaviour.CORRECT:
        text = f"{text[:_LONGEST]} Call the tool again with exactly these arguments: {json.dumps(answer.arguments)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... (cut)"


def printed(**members: Any) -> Output:
    """Return one JSON object on standard output, and nothing else: one more word there voids it."""
    return Output(0, stdout=f"{json.dumps(members)}\n")


@dataclass(slots=True, kw_only=True)
class ClientDialect:
    """A client that takes yes and no, and spells fields so; `call` None: its calls have no ids.

    `can_ask`: its person is really asked on ASK, and a refusal stops the call. `corrected`: how it calls other
    arguments in an answer, and what stands beside them; None: it takes none.
    """

    name: str
    events: Mapping[str, Moment]
    built_in: Mapping[str, BuiltIn]
    session: str = "session_id"
    call: str | None = "tool_use_id"
    result: str = "tool_response"
    can_ask: bool = False
    corrected: tuple[str, Mapping[str, str]] | None = None

    def read(self, body: Any) -> HookCall:
        """Return the call in what the client sent; HookInputError: which field is wrong, or an unknown event."""
        if not isinstance(body, Mapping):
            raise HookInputError(f"{self.name}: expected a JSON object but got {type(body).__name__}")
        event, arguments = body.get("hook_event_name"), body.get("tool_input")
        if not isinstance(event, str) or event not in self.events:
            raise self._error("hook_event_name", f"one of {', '.join(self.events)}", event)
        if not isinstance(arguments, dict):
            raise self._error("tool_input", "an object", arguments)
        moment, failed = self.events[event], event.endswith("Failure")
        # An id may be left out where nothing runs.
        key = self.call if moment is not Moment.PERMISSION or self.call in body else None
        tool, session = self._text(body, "tool_name", _TOOL), self._text(body, self.session, _ID)
        call_id = self._text(body, key, _ID) if key else None
        result = body.get(self.result) if moment is Moment.AFTER and not failed else None
        cwd, own = self._text(body, "cwd", _PATH), self.built_in.get(tool)
        return HookCall(self.name, moment, session, call_id, tool, arguments, cwd, own, result, failed)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer as the client reads it; to what was no call, `moment` is BEFORE.

        In PERMISSION the person is asked by the client itself.
        """
        is_asked = answer.behaviour is Behaviour.ASK and moment is Moment.PERMISSION
        if is_asked or answer.behaviour is Behaviour.PASS:
            return Output(0)
        if self.corrected and answer.behaviour is Behaviour.CORRECT and moment is Moment.BEFORE:
            name, members = self.corrected
            return printed(hookSpecificOutput={**members, name: answer.arguments})
        return Output(2, stderr=f"{reason(answer)}\n")

    def _text(self, body: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
        value = body.get(key)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self._error(key, f"a text like {pattern.pattern}", value)
        return value

    def _error(self, key: str, expected: str, value: object) -> HookInputError:
        got = ascii(value[:80]) if isinstance(value, str) else type(value).__name__
        return HookInputError(f"{self.name}: {key}: expected {expected} but got {got}", hint="run `pdp hook check`")
