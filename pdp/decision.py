"""Decisions, and the parser for the policy engine's answer, which policies/authz/decision.rego defines."""

import os
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NoReturn

import orjson

from pdp.errors import AnswerInvalidError
from pdp.json import FrozenObject, canonical, frozen


class Verdict(StrEnum):
    """The outcome of a decision. Only ALLOW runs a tool; with STEP_UP a person must approve the call first.

    Examples:
        >>> Verdict("STEP_UP") is Verdict.STEP_UP
        True
        >>> [verdict.value for verdict in Verdict]
        ['ALLOW', 'STEP_UP', 'DENY']
    """

    ALLOW = "ALLOW"
    STEP_UP = "STEP_UP"
    DENY = "DENY"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a decision, given by one concern (a module) of the policy.

    `code` is `<concern>.<finding>`, the same in all releases. `details` is read-only. `remedy` says how to get the call
    allowed. The enforcement point adds `explanation`, such as the origin of a value or the remaining budget.
    """

    code: str
    message: str
    details: dict[str, Any]
    remedy: str | None = None
    explanation: str | None = None

    @property
    def text(self) -> str:
        """The reason in words, for the caller and the model: code, message, explanation and remedy."""
        return " ".join(filter(None, (f"{self.code}: {self.message}", self.explanation, self.remedy)))

    def as_json(self) -> dict[str, Any]:
        """Return `{code, message, details, remedy?, explanation?}`."""
        parts = {"remedy": self.remedy, "explanation": self.explanation}
        present = {name: part for name, part in parts.items() if part is not None}
        return {"code": self.code, "message": self.message, "details": _sorted(self.details)} | present


@dataclass(frozen=True, slots=True)
class Obligation:
    """A duty of the enforcement point if the verdict is `on`. An ALLOW becomes DENY if the handler of `id` fails."""

    id: str
    on: Verdict
    parameters: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return `{id, on, parameters}`."""
        return {"id": self.id, "on": self.on, "parameters": _sorted(self.parameters)}


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reasons and obligations.

    Attributes:
        verdict: ALLOW, STEP_UP or DENY.
        reasons: the reasons for this verdict, sorted by code.
        obligations: the duties of the enforcement point.
        decision_id: the unique id of the decision, which the audit records.
        bundle_revision: the digest of the policy's content; None if no policy decided, or the policy is no bundle.
        release: the number of the policy's release, counted from 1; None in the same cases as `bundle_revision`.

    Examples:
        >>> import json
        >>> from pdp import Pep
        >>> call = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
        >>> with open("session.json") as file, Pep.from_project("pdp.yaml") as pep:
        ...     decision = pep.decide(call, json.load(file)).decision
        >>> decision.verdict.value, decision.codes
        ('ALLOW', ('effects.gate_satisfied', 'risk.acceptable'))
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    obligations: tuple[Obligation, ...]
    decision_id: str
    bundle_revision: str | None
    release: int | None

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the reasons, without duplicates, sorted."""
        return tuple(sorted({reason.code for reason in self.reasons}))

    def as_json(self) -> dict[str, Any]:
        """Return `{verdict, reasons, obligations, decision_id, bundle_revision, release}` as plain JSON."""
        return {
            "verdict": self.verdict,
            "reasons": [reason.as_json() for reason in self.reasons],
            "obligations": [obligation.as_json() for obligation in self.obligations],
            "decision_id": self.decision_id,
            "bundle_revision": self.bundle_revision,
            "release": self.release,
        }


def new_id() -> str:
    """Return a new id that cannot be guessed: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def denied(code: str, message: str) -> Decision:
    """Return a DENY decision for a failure that occurred outside of the policy."""
    return Decision(Verdict.DENY, (Reason(code, message, FrozenObject()),), (), new_id(), None, None)


_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}
_OLD_ANSWER: Final = {"verdict", "reasons", "obligations", "bundle"}
_ANSWER: Final = _OLD_ANSWER | {"request_id"}
_FINDINGS: Final = {"deny", "step_up", "allow", "obligations"}
_REASON: Final = {"code", "message", "details"}
_REASON_WITH_REMEDY: Final = _REASON | {"remedy"}
_OBLIGATION: Final = {"id", "on", "parameters"}
_BUNDLE: Final = {"revision", "release"}

# Reason codes that the decision itself adds. Only a DENY may have them.
_DENIALS: Final = frozenset(
    f"decision.{name}" for name in ("concern_not_loaded", "nothing_allows", "reason_malformed", "request_invalid")
)
ANY: Final = object()  # default of `parse_decision`: any request id is accepted

GRANT: Final = "effects.gate_satisfied"  # the code of the reason that every ALLOW has, and no other verdict


def parse_decision(body: bytes, request_id: object = ANY, *, grant: str | None = GRANT) -> Decision:
    """Parse the JSON of the document `authz/decision`; missing, mistyped and unknown fields are errors.

    The fields are checked by hand, because a pydantic model would take three times as long on every decision.

    An answer that names a request other than `request_id` is an error. Answers of old bundles name no request, and
    pass. Every ALLOW must have a reason with the code `grant`, and no other verdict may have it; with `grant=None`,
    this is not checked. Raises `AnswerInvalidError` if the policy is faulty, or of another release than this program.
    """
    answer = _object(body, _ANSWER, _OLD_ANSWER)
    if request_id is not ANY and answer.get("request_id", request_id) != request_id:
        _reject("the answer is for another request")
    verdict = _VERDICTS.get(answer["verdict"]) if type(answer["verdict"]) is str else None
    if verdict is None:
        _reject("the verdict is unknown")
    if type(answer["reasons"]) is not list or type(answer["obligations"]) is not list:
        _reject("reasons and obligations have to be lists")
    reasons = _reasons(answer["reasons"])
    if not reasons:
        _reject("the verdict has no reason")
    codes = {reason.code for reason in reasons}
    if grant and (grant in codes) is not (verdict is Verdict.ALLOW):
        _reject(f"{verdict} {'lacks' if verdict is Verdict.ALLOW else 'must not have'} the reason {grant}")
    if verdict is not Verdict.DENY and codes & _DENIALS:
        _reject(f"the verdict is {verdict}, but a reason denies the call")
    obligations = _obligations(answer["obligations"])
    if any(obligation.on is not verdict for obligation in obligations):
        _reject("an obligation belongs to another verdict")
    revision, release = _identity(answer["bundle"])
    return Decision(verdict, reasons, obligations, new_id(), revision, release)


def parse_findings(body: bytes) -> tuple[dict[str, tuple[Reason, ...]], tuple[Obligation, ...]]:
    """Parse the JSON document `authz/findings`: the reasons under `deny`, `step_up` and `allow`, and the obligations.

    Reasons and obligations are sorted as in a decision. Raises `AnswerInvalidError` if the answer is malformed.
    """
    answer = _object(body, _FINDINGS)
    if not all(type(part) is list for part in answer.values()):
        _reject("findings have to be lists")
    return {part: _reasons(answer[part]) for part in ("deny", "step_up", "allow")}, _obligations(answer["obligations"])


def _object(body: bytes, *forms: set[str]) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except ValueError:
        _reject("not JSON")
    if type(answer) is not dict or answer.keys() not in forms:
        _reject(f"not an object with {', '.join(sorted(forms[0]))}")
    return answer


# Rego's sets have no order, and the engines list their elements differently, so reasons and obligations are sorted.
def _reasons(items: list[Any]) -> tuple[Reason, ...]:
    reasons = [_reason(item) for item in items]
    if len({reason.code for reason in reasons}) < len(reasons):
        reasons.sort(key=lambda reason: (canonical(reason.details), reason.message))
    return tuple(sorted(reasons, key=attrgetter("code")))


def _obligations(items: list[Any]) -> tuple[Obligation, ...]:
    obligations = [_obligation(item) for item in items]
    if len(obligations) > 1:
        obligations.sort(key=lambda obligation: (obligation.id, canonical(obligation.parameters)))
    return tuple(obligations)


def _reject(why: str) -> NoReturn:
    raise AnswerInvalidError(
        f"the policy engine's answer is not a decision: {why}",
        hint="check that the bundle and this program are of the same release",
    )


def _reason(item: Any) -> Reason:
    if type(item) is dict and (item.keys() == _REASON or item.keys() == _REASON_WITH_REMEDY):
        code, message, details, remedy = item["code"], item["message"], item["details"], item.get("remedy", "")
        if type(code) is str and type(message) is str and type(details) is dict and type(remedy) is str:
            return Reason(code, message, frozen(details), remedy or None)
    _reject("malformed reason")


def _obligation(item: Any) -> Obligation:
    if type(item) is dict and item.keys() == _OBLIGATION:
        name, on, parameters = item["id"], item["on"], item["parameters"]
        if type(name) is str and type(on) is str and on in _VERDICTS and type(parameters) is dict:
            return Obligation(name, _VERDICTS[on], frozen(parameters))
    _reject("malformed obligation")


def _identity(bundle: Any) -> tuple[str | None, int | None]:
    if bundle is None:
        return None, None
    if type(bundle) is dict and bundle.keys() == _BUNDLE:
        revision, release = bundle["revision"], bundle["release"]
        if type(revision) is str and type(release) is int and release >= 1:
            return revision, release
    _reject("malformed bundle")


# The keys are sorted, because the engines return them in different orders.
def _sorted(value: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    return plain
