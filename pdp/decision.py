"""What the policy engine answered, parsed once at the boundary. Source: policies/authz/decision.rego."""

import os
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NoReturn

import orjson

from pdp.errors import AnswerInvalidError
from pdp.json import FrozenObject, canonical, frozen


class Verdict(StrEnum):
    """The outcome. Only ALLOW executes; STEP_UP means that a person must approve first."""

    ALLOW = "ALLOW"
    STEP_UP = "STEP_UP"
    DENY = "DENY"


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding of one concern. `code` is `<concern>.<finding>` and never renamed; `details` are read-only.

    `remedy` is what whoever is denied can do; None where the rule states nothing. `explanation` is what the enforcement
    point adds: where a value came from, what is left of a sum.
    """

    code: str
    message: str
    details: dict[str, Any]
    remedy: str | None = None
    explanation: str | None = None

    @property
    def text(self) -> str:
        """The reason in words, for whoever is denied, the model included: code, message, explanation and remedy."""
        return " ".join(filter(None, (f"{self.code}: {self.message}", self.explanation, self.remedy)))

    def as_json(self) -> dict[str, Any]:
        """Return `{code, message, details, remedy?, explanation?}`."""
        parts = {"remedy": self.remedy, "explanation": self.explanation}
        stated = {name: part for name, part in parts.items() if part is not None}
        return {"code": self.code, "message": self.message, "details": _sorted(self.details)} | stated


@dataclass(frozen=True, slots=True)
class Obligation:
    """A duty on the enforcement point; one that it cannot fulfil turns ALLOW into DENY.

    `on` is the verdict that it belongs to, `parameters` what the handler of `id` needs.
    """

    id: str
    on: Verdict
    parameters: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return `{id, on, parameters}`."""
        return {"id": self.id, "on": self.on, "parameters": _sorted(self.parameters)}


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reasons (of that verdict alone, sorted by code) and obligations.

    `decision_id` is unique. `bundle_revision` (a digest of the policy's content) and `release` (counts upwards from 1)
    name the policy that decided; they are None when no policy did, or one that no build has named.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    obligations: tuple[Obligation, ...]
    decision_id: str
    bundle_revision: str | None
    release: int | None

    @property
    def codes(self) -> tuple[str, ...]:
        """The reasons' codes, each once, sorted."""
        return tuple(sorted({reason.code for reason in self.reasons}))

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain JSON."""
        return {
            "verdict": self.verdict,
            "reasons": [reason.as_json() for reason in self.reasons],
            "obligations": [obligation.as_json() for obligation in self.obligations],
            "decision_id": self.decision_id,
            "bundle_revision": self.bundle_revision,
            "release": self.release,
        }


def new_id() -> str:
    """Return a new unguessable identifier: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def denied(code: str, message: str) -> Decision:
    """Return the DENY that stands for a failure: no policy took part in it."""
    return Decision(Verdict.DENY, (Reason(code, message, FrozenObject()),), (), new_id(), None, None)


_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}
_OLDER_ANSWER: Final = {"verdict", "reasons", "obligations", "bundle"}
_ANSWER: Final = _OLDER_ANSWER | {"request_id"}
_FINDINGS: Final = {"deny", "step_up", "allow", "obligations"}
_REASON: Final = {"code", "message", "details"}
_REMEDIED: Final = _REASON | {"remedy"}
_OBLIGATION: Final = {"id", "on", "parameters"}
_BUNDLE: Final = {"revision", "release"}


# Codes of the decision itself, which no verdict but a DENY has.
_DENIALS: Final = frozenset(
    f"decision.{name}" for name in ("concern_not_loaded", "nothing_allows", "reason_malformed", "request_invalid")
)
ANY: Final = object()
"""In place of a request's id: the answer may be about any request."""

GRANT: Final = "effects.gate_satisfied"
"""The code of the one reason that grants a call: every ALLOW has it, and no other verdict."""


def parse_decision(body: bytes, request_id: object = ANY, *, grant: str | None = GRANT) -> Decision:
    """Parse the JSON of the document `authz/decision`; nothing may be missing, mistyped or unknown.

    Checked by hand, in a third of the time that a model takes: this stands in the way of every decision.

    Args:
        body: the JSON.
        request_id: an answer that names another one is refused; bundles that were built before the policy named it
            are not checked for that.
        grant: the code of the reason that an ALLOW, and no other verdict, has to have; None: any.

    AnswerInvalidError: not a decision, or not one about this request: policy and program are of different versions, or
    the policy is broken.
    """
    answer = _object(body, _ANSWER, _OLDER_ANSWER)
    if request_id is not ANY and answer.get("request_id", request_id) != request_id:
        _refuse("it answers another request")
    verdict = _VERDICTS.get(answer["verdict"]) if type(answer["verdict"]) is str else None
    if verdict is None:
        _refuse("an unknown verdict")
    if type(answer["reasons"]) is not list or type(answer["obligations"]) is not list:
        _refuse("reasons and obligations have to be lists")
    reasons = _reasons(answer["reasons"])
    if not reasons:
        _refuse("no reason for the verdict")
    codes = {reason.code for reason in reasons}
    if grant and (grant in codes) is not (verdict is Verdict.ALLOW):
        _refuse(f"{verdict} {'without' if verdict is Verdict.ALLOW else 'with'} a reason that grants")
    if verdict is not Verdict.DENY and codes & _DENIALS:
        _refuse(f"{verdict} with a reason to deny")
    obligations = _obligations(answer["obligations"])
    if any(obligation.on is not verdict for obligation in obligations):
        _refuse("an obligation of another verdict")
    revision, release = _identity(answer["bundle"])
    return Decision(verdict, reasons, obligations, new_id(), revision, release)


def parse_findings(body: bytes) -> tuple[dict[str, tuple[Reason, ...]], tuple[Obligation, ...]]:
    """Parse the JSON of the document `authz/findings`: all that fired for one request, whichever verdict won.

    Reasons by `deny`, `step_up` and `allow`, and obligations, are sorted as in a decision. Errors as of that.
    """
    answer = _object(body, _FINDINGS)
    if not all(type(part) is list for part in answer.values()):
        _refuse("findings have to be lists")
    return {part: _reasons(answer[part]) for part in ("deny", "step_up", "allow")}, _obligations(answer["obligations"])


def _object(body: bytes, *forms: set[str]) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except ValueError:
        _refuse("not JSON")
    if type(answer) is not dict or answer.keys() not in forms:
        _refuse(f"not an object with {', '.join(sorted(forms[0]))}")
    return answer


# Sets have no order, and WebAssembly and OPA list them differently (trap 15): one order for both.
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


def _refuse(why: str) -> NoReturn:
    raise AnswerInvalidError(
        f"the policy engine's answer is not a decision: {why}",
        hint="check that the bundle and this program are of the same release",
    )


def _reason(item: Any) -> Reason:
    if type(item) is dict and (item.keys() == _REASON or item.keys() == _REMEDIED):
        code, message, details, remedy = item["code"], item["message"], item["details"], item.get("remedy", "")
        if type(code) is str and type(message) is str and type(details) is dict and type(remedy) is str:
            return Reason(code, message, frozen(details), remedy or None)
    _refuse("malformed reason")


def _obligation(item: Any) -> Obligation:
    if type(item) is dict and item.keys() == _OBLIGATION:
        name, on, parameters = item["id"], item["on"], item["parameters"]
        if type(name) is str and type(on) is str and on in _VERDICTS and type(parameters) is dict:
            return Obligation(name, _VERDICTS[on], frozen(parameters))
    _refuse("malformed obligation")


def _identity(bundle: Any) -> tuple[str | None, int | None]:
    if bundle is None:
        return None, None
    if type(bundle) is dict and bundle.keys() == _BUNDLE:
        revision, release = bundle["revision"], bundle["release"]
        if type(revision) is str and type(release) is int and release >= 1:
            return revision, release
    _refuse("malformed bundle")


# The engines list the keys of an object in different orders.
def _sorted(value: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    return plain
