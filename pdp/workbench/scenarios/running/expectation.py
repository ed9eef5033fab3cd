"""What was expected of a step, held against what came of it. Both sides are plain JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.json import JsonValueError, canonical, check_json
from pdp.proposal import RejectionCode, Status
from pdp.workbench.scenarios.results import Mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.contract.plan import PlanStep
    from pdp.decision import Decision
    from pdp.evaluation import Evaluation
    from pdp.stores.approvals import Approval
    from pdp.workbench.scenarios.files.scenario import Expect


@dataclass(frozen=True, slots=True)
class Happened:
    """What came of one proposal, approval or request; what does not apply is None.

    `planned`: what became of a plan's step before it was called, if it was.
    """

    evaluation: Evaluation | None = None
    decision: Decision | None = None
    approval: Approval | None = None
    refused: str | None = None
    planned: PlanStep | None = None


def expected(expect: Expect) -> dict[str, Any]:
    """Return what is expected, as it is written."""
    stated: dict[str, Any] = expect.model_dump(mode="json", exclude_unset=True)
    return stated


def actual(expect: Expect, happened: Happened) -> dict[str, Any]:
    """Return what came of it, in the keys that are expected."""
    stated = [name for name in type(expect).model_fields if name in expect.model_fields_set]
    return {name: _plain(_ACTUAL[name](happened, getattr(expect, name))) for name in stated}


def mismatches(expected: dict[str, Any], actual: dict[str, Any], prefix: str = "") -> tuple[Mismatch, ...]:
    """Return the keys in which two sides differ. Codes and markings are sets, obligations have no order.

    Of `details`, `messages` and `remedies` the second side has a list for each code: what its reasons have.
    """
    return tuple(
        Mismatch(f"{prefix}{name}", expected[name], actual[name])
        for name in expected
        if not _EQUAL.get(name, equal)(expected[name], actual[name])
    )


def equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 is 1.0 and not true."""
    return canonical(one) == canonical(other)


def has_fields(details: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Return whether a reason's details have these fields with these values; they may have more."""
    return all(name in details and equal(details[name], value) for name, value in fields.items())


def _same_set(one: Any, other: Any) -> bool:
    return isinstance(one, list) and isinstance(other, list) and set(one) == set(other)


def _same_obligations(expected: Any, actual: Any) -> bool:
    """Whether each expected obligation is there, once for each time that it is named, and no other is."""
    if not isinstance(expected, list) or not isinstance(actual, list):
        return bool(expected == actual)
    whole = Counter(canonical(obligation) for obligation in actual)
    whole.subtract(canonical(obligation) for obligation in expected if isinstance(obligation, dict))
    if any(count < 0 for count in whole.values()):
        return False
    left = Counter(orjson.loads(text)["id"] for text in whole.elements())
    return left == Counter(name for name in expected if isinstance(name, str))


def _same_details(expected: Any, actual: Any) -> bool:
    """Whether, for each code, a single reason has all the fields that are expected of it."""
    if not isinstance(expected, dict):
        return bool(expected == actual)
    return all(
        isinstance(fields, dict) and any(has_fields(details, fields) for details in actual[code])
        for code, fields in expected.items()
    )


def _same_texts(expected: Any, actual: Any) -> bool:
    if not isinstance(expected, dict):
        return bool(expected == actual)
    return all(text in actual[code] for code, text in expected.items())


_EQUAL: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "codes": _same_set,
    "details": _same_details,
    "messages": _same_texts,
    "remedies": _same_texts,
    "markings": _same_set,
    "obligations": _same_obligations,
}


def _plain(value: Any) -> Any:
    """A value as JSON; anything else as a text that says so."""
    try:
        plain = orjson.loads(orjson.dumps(value))
        check_json(plain)
    except (TypeError, ValueError):
        return f"<not JSON: {type(value).__name__}>"
    return plain


def _of_reasons(happened: Happened, codes: Mapping[str, Any] | None, part: str) -> dict[str, list[Any]]:
    """What every reason of these codes has in its field `part`."""
    reasons = happened.decision.reasons if happened.decision else ()
    return {code: [getattr(reason, part) for reason in reasons if reason.code == code] for code in codes or ()}


def _trace(happened: Happened, names: Mapping[str, Any] | None) -> dict[str, Any]:
    trace = happened.evaluation.trace if happened.evaluation else None
    return {name: getattr(trace, name, None) for name in names or ()}


def _obligations(happened: Happened) -> list[dict[str, Any]]:
    obligations = happened.decision.obligations if happened.decision else ()
    return [{"id": obligation.id, "parameters": obligation.parameters} for obligation in obligations]


def _status(happened: Happened) -> str | None:
    # What the plan's check corrected or dropped is transformed, whatever came of it afterwards but a rejection.
    called = happened.evaluation.outcome.status if happened.evaluation else None
    if called is Status.REJECTED or happened.planned is None:
        return called
    if happened.evaluation is None and not happened.planned.pruned:
        return Status.REJECTED
    return happened.planned.status if happened.planned.status is Status.TRANSFORMED else called


def _rejection(happened: Happened) -> str | None:
    if happened.evaluation is None and happened.planned is not None and not happened.planned.pruned:
        return RejectionCode.POLICY_VIOLATION
    rejection = happened.evaluation.outcome.rejection if happened.evaluation else None
    return rejection.code if rejection else None


def _arguments(happened: Happened) -> Any:
    request = happened.evaluation.request if happened.evaluation else None
    return request["context"]["arguments"] if request else None


def _pruned(happened: Happened) -> bool:
    if happened.planned is not None and happened.planned.pruned:
        return True
    outcome = happened.evaluation.outcome if happened.evaluation else None
    return outcome is not None and outcome.status is Status.TRANSFORMED and outcome.proposal is None


def _failure(happened: Happened) -> str | None:
    failure = happened.evaluation.outcome.failure if happened.evaluation else None
    return failure.code if failure else None


def _json_or_not(value: Any) -> Any:
    try:
        check_json(value)
    except JsonValueError:
        return f"<not JSON: {type(value).__name__}>"
    return value


_ACTUAL: Final[dict[str, Callable[[Happened, Any], Any]]] = {
    "status": lambda happened, _: _status(happened),
    "rejection": lambda happened, _: _rejection(happened),
    "verdict": lambda happened, _: happened.decision.verdict if happened.decision else None,
    "codes": lambda happened, _: happened.decision.codes if happened.decision else (),
    "details": lambda happened, expected: _of_reasons(happened, expected, "details"),
    "messages": lambda happened, expected: _of_reasons(happened, expected, "message"),
    "remedies": lambda happened, expected: _of_reasons(happened, expected, "remedy"),
    "obligations": lambda happened, _: _obligations(happened),
    "trace": _trace,
    "arguments": lambda happened, _: _arguments(happened),
    "pruned": lambda happened, _: _pruned(happened),
    "executed": lambda happened, _: happened.evaluation is not None and happened.evaluation.executed,
    "result": lambda happened, _: _json_or_not(happened.evaluation.result) if happened.evaluation else None,
    "failure": lambda happened, _: _failure(happened),
    "approval": lambda happened, _: happened.approval.state if happened.approval else None,
    "refused": lambda happened, _: happened.refused,
    "markings": lambda happened, _: sorted(happened.evaluation.markings) if happened.evaluation else [],
}
"""What came of a step, by the key under which it can be expected; given what is expected there."""
