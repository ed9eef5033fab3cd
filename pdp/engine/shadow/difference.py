"""Where two bundles decide one request differently: by verdict, by reason codes, or by obligations.

Nothing of a request stands in a difference but its keyed digest, its request id and the name of its tool; and of the
answers no message, no details and no parameters, since a policy may quote the request in them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.decision import Verdict, parse_decision
from pdp.errors import AnswerInvalidError
from pdp.json import canonical

if TYPE_CHECKING:
    from pdp.decision import Decision

_TEXT_LENGTH: Final = 256
_LISTED: Final = 50
_STRICTEST_FIRST: Final = (Verdict.DENY, Verdict.STEP_UP, Verdict.ALLOW)


@dataclass(frozen=True, slots=True)
class Difference:
    """One request that the shadow decides differently. Texts have at most 256 characters, lists at most 50 items.

    Attributes:
        kind: its class: `ALLOW -> DENY`; with one verdict on both sides, `other codes`, else `other obligations`.
        document: `authz/decision`, or `authz/plan` for a whole plan.
        input_digest: names the request; None when the application's own digest failed.
        request_id: `context.request_id`, as in the audit stream; None where the request has none.
        tool: `action.properties.tool`; None where the request has none, as a plan.
        verdict: of the engine. This one holds.
        shadow_verdict: of the shadow.
        codes: of the engine's reasons, each once, sorted.
        shadow_codes: of the shadow's.
        obligations: the ids of the engine's obligations, each once, sorted.
        shadow_obligations: of the shadow's.
        revision: of the engine's bundle, or None.
        release: likewise.
        shadow_revision: of the shadow's bundle, or None.
        shadow_release: likewise.
    """

    kind: str
    document: str
    input_digest: str | None
    request_id: str | None
    tool: str | None
    verdict: Verdict
    shadow_verdict: Verdict
    codes: tuple[str, ...]
    shadow_codes: tuple[str, ...]
    obligations: tuple[str, ...]
    shadow_obligations: tuple[str, ...]
    revision: str | None
    release: int | None
    shadow_revision: str | None
    shadow_release: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the difference as plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision as it is compared: parsed, its obligations as a set of canonical documents."""

    decision: Decision
    obligations: frozenset[bytes]


def read_answer(document: bytes) -> Answer:
    """Parse what an engine answered.

    Raises:
        AnswerInvalidError: not a decision.
    """
    try:
        decision = parse_decision(document)
        obligations = frozenset(canonical(asdict(each)) for each in decision.obligations)
    except ValueError as error:
        raise AnswerInvalidError("the policy engine's answer is not plain JSON") from error
    return Answer(decision, obligations)


def kind_of(answer: Answer, shadow: Answer) -> str | None:
    """Return the class of the difference, or None when both decide the same. Messages and details do not count."""
    ours, theirs = answer.decision, shadow.decision
    if ours.verdict is not theirs.verdict:
        return f"{ours.verdict} -> {theirs.verdict}"
    if ours.codes != theirs.codes:
        return "other codes"
    return "other obligations" if answer.obligations != shadow.obligations else None


def difference_of(
    kind: str, answer: Answer, shadow: Answer, *, document: str, body: bytes, input_digest: str | None
) -> Difference:
    """Return the difference of class `kind` between two answers to the request `body`."""
    ours, theirs = answer.decision, shadow.decision
    request_id, tool = _named(body)
    return Difference(
        kind=kind,
        document=document,
        input_digest=input_digest,
        request_id=request_id,
        tool=tool,
        verdict=ours.verdict,
        shadow_verdict=theirs.verdict,
        codes=_listed(ours.codes),
        shadow_codes=_listed(theirs.codes),
        obligations=_listed(tuple(sorted({each.id for each in ours.obligations}))),
        shadow_obligations=_listed(tuple(sorted({each.id for each in theirs.obligations}))),
        revision=bounded_text(ours.bundle_revision),
        release=ours.release,
        shadow_revision=bounded_text(theirs.bundle_revision),
        shadow_release=theirs.release,
    )


def loosening(verdict: Verdict, shadow_verdict: Verdict) -> int:
    """Return how many steps towards ALLOW the shadow is: 2 for DENY to ALLOW, below 0 when it is stricter."""
    return _STRICTEST_FIRST.index(shadow_verdict) - _STRICTEST_FIRST.index(verdict)


def bounded_text(value: Any) -> str | None:
    """Return a text that may be kept and shown, cut to 256 characters; None for anything else."""
    return value[:_TEXT_LENGTH] if type(value) is str else None


def _listed(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text[:_TEXT_LENGTH] for text in texts[:_LISTED])


# Of a request of whatever shape: raw ones come here as well.
def _named(body: bytes) -> tuple[str | None, str | None]:
    try:
        request = orjson.loads(body)
    except ValueError:
        return None, None
    return bounded_text(_at(request, "context", "request_id")), bounded_text(
        _at(request, "action", "properties", "tool")
    )


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if type(value) is dict else None
    return value
