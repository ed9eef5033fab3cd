"""Handlers of obligations: what an application derives its own from, and those of the baseline.

pdp/obligations/obligations.py says when each is called.

Sources: tool pattern library, 9.3: a composition's output is always a draft (pattern 5), a search's snapshot id is
recorded (pattern 10), aggregation and search hand on the markings of what they read (patterns 8 and 10).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import PdpError
from pdp.json import canonical, check_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.decision import Obligation
    from pdp.proposal import Proposal

REDACTED: Final = "[redacted]"
"""The value of what was redacted."""

_LEVELS: Final = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_INDEX: Final = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_SNAPSHOT: Final = ("retrievalSnapshotId", "retrieval_snapshot_id")


class ObligationError(PdpError):
    """An obligation that cannot be fulfilled. Before a call it is a DENY; on a result, the result is withheld."""

    code = "obligations.unfulfillable"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the caller gets of a call that ran: its result, markings and retrieval snapshot."""

    result: Any
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None


class ObligationHandler:
    """Fulfils the obligations of one id. Derive from it and override what is needed; shared between threads.

        class Notify(ObligationHandler):
            def check(self, parameters):
                if set(parameters) != {"channel"}:
                    raise ObligationError("notify needs a channel")

            def before(self, parameters, request):
                send(parameters["channel"], request["action"]["name"])

        pep = Pep(manifest, engine, obligations={"notify": Notify()})

    Whatever it raises counts as not fulfilled. Its methods are plain functions, not coroutines.
    """

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise `ObligationError` when it cannot be fulfilled with these parameters; nothing has run yet.

        Also asked when a call is only decided, so it changes nothing.
        """

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Act before the tool runs, or refuse by raising `ObligationError`. `request` is what was decided."""

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:  # noqa: ARG002 - of others
        """Return what is delivered in place of `delivery`; what the tool returned is never changed itself."""
        return delivery


class PinRetrievalSnapshot(ObligationHandler):
    """`pin_retrieval_snapshot {}`: the result names the snapshot that it was retrieved from."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Take no parameters."""
        _check_names(parameters)

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:  # noqa: ARG002 - has none
        """Note the snapshot."""
        result = delivery.result
        named = {result[name] for name in _SNAPSHOT if name in result} if type(result) is dict else set()
        snapshot = named.pop() if len(named) == 1 else None
        if not isinstance(snapshot, str) or not snapshot:
            raise ObligationError("the result names no snapshot, or more than one")
        return replace(delivery, retrieval_snapshot=snapshot)


class DraftOnly(ObligationHandler):
    """`draft_only {}`: the result is an object in state draft."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Take no parameters."""
        _check_names(parameters)

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:  # noqa: ARG002 - has none
        """Call an object without a state a draft; nothing but a draft gets through."""
        result = delivery.result
        if type(result) is not dict or result.get("state", "draft") != "draft":
            raise ObligationError("the result is no draft")
        return replace(delivery, result={**result, "state": "draft"})


class Redact(ObligationHandler):
    """`redact {fields: [JSON pointer, ...]}`: what is there in the result is replaced by `[redacted]`."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Take pointers as of RFC 6901; the empty one is the whole result."""
        _check_names(parameters, "fields")
        for pointer in _texts(parameters, "fields"):
            if not _POINTER.fullmatch(pointer):
                raise ObligationError(f"{pointer!r:.60} is not a JSON pointer such as /customer/iban")

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
        """Replace them, in a copy."""
        check_json(delivery.result)
        # In a list, so that the whole result can be replaced like any part of it.
        holder = [orjson.loads(canonical(delivery.result))]
        for pointer in parameters["fields"]:
            steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
            _redact(holder, ["0", *steps])
        return replace(delivery, result=holder[0])


class MarkResult(ObligationHandler):
    """`mark_result {markings: [name, ...]}`: the markings that the result carries; of several, all."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Take names."""
        _check_names(parameters, "markings")
        _texts(parameters, "markings")

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
        """Add them."""
        return replace(delivery, markings=delivery.markings | set(parameters["markings"]))


class LogLevel(ObligationHandler):
    """`log_level {level: debug | info | warning | error}`: the decision is logged at it; of several, the highest."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Take a level."""
        _check_names(parameters, "level")
        if _level(parameters) is None:
            raise ObligationError(f"level has to be one of {', '.join(_LEVELS)}")


class Transform(ObligationHandler):
    """`transform {set?: {argument: value}, tool?: name}`: another proposal takes the place of this one."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Take arguments to set, another tool, or both."""
        _check_names(parameters, admitted=("set", "tool"))
        tool = parameters.get("tool", "")
        if not parameters or type(parameters.get("set", {})) is not dict or type(tool) is not str:
            raise ObligationError("set has to be an object and tool a name, and one of them has to be there")


BEFORE_OWN: Final[dict[str, ObligationHandler]] = {
    "transform": Transform(),
    "log_level": LogLevel(),
    "pin_retrieval_snapshot": PinRetrievalSnapshot(),
    "draft_only": DraftOnly(),
}
"""The handlers that come before the application's own on a result, in their order."""

AFTER_OWN: Final[dict[str, ObligationHandler]] = {"redact": Redact(), "mark_result": MarkResult()}
"""Those that come after them."""


def log_level(obligations: Iterable[Obligation]) -> int | None:
    """Return the highest level, as of `logging`, that a `log_level` names; None when none does."""
    levels = [_level(obligation.parameters) for obligation in obligations if obligation.id == "log_level"]
    return max((level for level in levels if level is not None), default=None)


def transformed(proposal: Proposal, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the proposal that takes the place of `proposal` by a `transform`."""
    arguments = orjson.loads(proposal.text)
    return {"tool": parameters.get("tool", proposal.tool), "arguments": {**arguments, **parameters.get("set", {})}}


def _check_names(parameters: Mapping[str, Any], needed: str | None = None, admitted: tuple[str, ...] = ()) -> None:
    if needed is not None and needed not in parameters:
        raise ObligationError(f"the parameter {needed} is missing")
    unknown = sorted(parameters.keys() - {needed, *admitted})
    if unknown:
        raise ObligationError(f"there is no parameter {unknown[0]!r:.60}")


def _texts(parameters: Mapping[str, Any], name: str) -> list[str]:
    texts = parameters[name]
    if type(texts) is not list or not texts or not all(type(text) is str for text in texts):
        raise ObligationError(f"{name} has to be a list of texts, and not empty")
    return texts


def _level(parameters: Mapping[str, Any]) -> int | None:
    level = parameters.get("level")
    return _LEVELS.get(level) if type(level) is str else None


def _redact(node: Any, steps: list[str]) -> None:
    """Replace what `steps` lead to. What is not there need not be hidden; another shape than expected is an error."""
    *path, last = steps
    for step in path:
        key = _key(node, step)
        if key is None:
            return
        node = node[key]
    key = _key(node, last)
    if key is not None:
        node[key] = REDACTED


def _key(node: Any, step: str) -> Any:
    """Return the key or index of `step` in `node`, or None when nothing is there."""
    if type(node) is dict:
        return step if step in node else None
    if type(node) is list and _INDEX.fullmatch(step):
        return int(step) if int(step) < len(node) else None
    if node is None or node == REDACTED:
        return None
    # A list where an object was expected, say: what should be hidden may stand somewhere else in it.
    raise ObligationError(f"the result has another shape than the pointer's step {step!r:.60}")
