"""What a run came to, as the JSON that is kept for its idempotency key, and back.

| the run | kept as | the key |
|---|---|---|
| a result that is JSON, at most 1 MiB | `{"result": ...}` | stored |
| another result, or a failure with `effect: done` | `{"failure": ...}` | stored: it ran, and never runs again |
| a failure of a tool that was not started, that has no effects, or with `effect: none` | nothing | free |
| any other failure | `{"failure": ...}` | unknown: the effect may have happened |
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from pdp.execution.run import Execution
from pdp.json import MAX_BYTES, JsonValueError, check_json
from pdp.proposal import Failure, FailureCode
from pdp.stores.errors import StoreError
from pdp.stores.key import Conflict, KeyRecord, KeyState, Running, Stored, Unknown

EFFECT: Final = "effect"
"""The detail of a failure that says what became of the tool's effect: `none`, `done` or `unknown` (so when absent)."""


class Settled(NamedTuple):
    """What is kept of a finished run."""

    state: KeyState
    outcome: str


def settled(execution: Execution, *, effects: bool = True) -> Settled | None:
    """Return what to keep of a run; None when the key is free again."""
    failure = execution.failure
    if failure is None:
        return Settled(KeyState.FINISHED, _kept(execution.result))
    effect = failure.details.get(EFFECT)
    if not execution.started or not effects or effect == "none":
        return None
    return Settled(KeyState.FINISHED if effect == "done" else KeyState.UNKNOWN, _failed(failure))


def known(record: KeyRecord, arguments_digest: str, now: float) -> Stored | Conflict | Running | Unknown | None:
    """Return what a key's record means for a call with these arguments; None when the key is free again.

    Raises:
        StoreError: what is kept cannot be read.
    """
    if record.expired(now):
        return None
    if record.arguments_digest != arguments_digest:
        return Conflict()
    if record.state is KeyState.FINISHED:
        return Stored(_read(record), record.approval_id)
    if record.state is KeyState.STARTED and now < record.running_until:
        return Running(record.running_until, record.approval_id)
    return Unknown(record.started_at, _read(record) if record.outcome else None, record.approval_id)


def _kept(result: Any) -> str:
    try:
        check_json(result)
        text = orjson.dumps({"result": result})
    except (JsonValueError, orjson.JSONEncodeError) as error:
        return _not_kept(f"it is not JSON ({error})"[:300])
    if len(text) > MAX_BYTES:
        return _not_kept(f"it is larger than {MAX_BYTES} bytes")
    return text.decode()


def _not_kept(why: str) -> str:
    message = f"the tool ran under this idempotency key before, and its result could not be kept: {why}"
    return _failed(Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {EFFECT: "done"}))


def _failed(failure: Failure) -> str:
    details = failure.details
    try:
        check_json(details)
    except JsonValueError:
        details = {EFFECT: details.get(EFFECT)} if isinstance(details.get(EFFECT), str) else {}
    message = failure.message.encode(errors="backslashreplace").decode()
    return orjson.dumps({"failure": {"code": failure.code, "message": message, "details": details}}).decode()


def _read(record: KeyRecord) -> Execution:
    try:
        found = orjson.loads(record.outcome or "")
        if "failure" not in found:
            return Execution(result=found["result"], started=False)
        told = found["failure"]
        failure = Failure(FailureCode(told["code"]), told["message"], told["details"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"what is kept for the idempotency key {record.names} cannot be read",
            hint="it was changed by another program, or made by a newer release",
        ) from error
    return Execution(failure=failure, started=False)
