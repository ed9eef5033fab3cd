"""What a client reads: texts that are safe for a model and a terminal, and the denial that every client takes."""

from __future__ import annotations

import json
from typing import Any, Final

from pdp.hooks.call import Behaviour, HookAnswer, Moment, Output

_LONGEST: Final = 4000
_NO_REASON: Final = "The policy does not allow this call."
PASSED: Final = Output(0)
"""The client goes on as without a hook."""


def reason(answer: HookAnswer) -> str:
    """Return why a call does not run, and what to call in its place; never empty, without control characters."""
    text = "".join(letter if letter.isprintable() else " " for letter in answer.message)
    text = " ".join(text.split()) or _NO_REASON
    if answer.behaviour is Behaviour.CORRECT:
        text = f"{text[:_LONGEST]} Call the tool again with exactly these arguments: {json.dumps(answer.arguments)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... (cut)"


def denial(answer: HookAnswer) -> Output:
    """Return the denial: exit code 2, a plain reason on standard error, and nothing on standard output."""
    return Output(2, stderr=f"{reason(answer)}\n")


def plain(answer: HookAnswer, moment: Moment) -> Output:
    """Return the answer to a client that takes no more than yes and no; in PERMISSION its person is asked anyway."""
    asks = answer.behaviour is Behaviour.ASK and moment is Moment.PERMISSION
    return PASSED if asks or answer.behaviour is Behaviour.PASS else denial(answer)


def printed(**members: Any) -> Output:
    """Return one JSON object on standard output, and nothing else: one more word there voids it."""
    return Output(0, stdout=f"{json.dumps(members)}\n")
