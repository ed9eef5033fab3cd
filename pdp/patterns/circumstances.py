"""What the enforcement point knows of a call beside its arguments, and what a pattern makes of its execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.proposal import Execution


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What holds for one call that may run. All of it comes from session and decision, nothing from the model.

    Attributes:
        caller: who it is for, such as issuer, subject and tenant as one text. What one caller has looked up is not
            handed to another, and idempotency keys of two callers have nothing in common.
        idempotency_key: the session's, or the derived one.
        decision_id: of the decision that allowed it.
        markings: those that the result carries by the policy (obligation `mark_result`).
        clearances: the subject's; None where they are not to be checked here.
        resource: the request's resource, (type, id).
        approved: a person's approval let it through.
        now: seconds since 1970.
        inputs: canonical JSON of what the tool is given beside its arguments, of config and state: an answer that came
            with others is another one.
    """

    caller: str = ""
    idempotency_key: str | None = None
    decision_id: str | None = None
    markings: frozenset[str] = frozenset()
    clearances: frozenset[str] | None = None
    resource: tuple[str, str] | None = None
    approved: bool = False
    now: float = 0.0
    inputs: bytes = b""


UNKNOWN = Circumstances()
"""A call of which nothing else is known: no key, no decision, no approval."""


@dataclass(frozen=True, slots=True)
class Checked:
    """An execution as its pattern leaves it.

    Attributes:
        execution: the result, with what the pattern adds to it; or a failure.
        markings: those that the result carries.
        retrieval_snapshot: what a search retrieved from.
        pins: the versions of the pinned sources that a conversion could use, by source.
    """

    execution: Execution
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None
    pins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
