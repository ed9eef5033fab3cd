"""Compare the expected and the actual result of a step. Both results are plain JSON."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pdp.contract.plan import PlanStep
from pdp.decision import Decision
from pdp.flow.evaluation import Evaluation
from pdp.json import JsonValueError, canonical, check_json
from pdp.proposal import RejectionCode, Status
from pdp.stores.approvals import Approval
from pdp.workbench.scenarios.files.scenario import Expect
from pdp.workbench.scenarios.results import Mismatch


@dataclass(frozen=True, slots=True)
class Happened:
    """What a proposal, approval or raw request led to. `planned` is the step of a checked plan; None without a plan."""

    evaluation: Evaluation | None = None
    decision: Decision | None = None
    approval: Approval | None = None
    refused: str | None = None
    planned: PlanStep | None = None
    touched: list[str] | None = None
    excess: tuple[Mismatch, ...] = ()


def expected(expect: Expect) -> dict[str, Any]:
    """Return an expectation as plain JSON, with only the fields that the author wrote."""
    return expect.model_dump(mode="json", exclude_unset=True, by_alias=True)


def actual(expect: Expect, happened: Happened) -> dict[str, Any]:
    """Return the actual result as plain JSON, with the same keys as the expectation."""
    evaluation, decision, approval = happened.evaluation, happened.decision, happened.approval
    failure = evaluation.outcome.failure if evaluation else None
    values: dict[str, Any] = {
        "status": _status(happened),
        "rejection": _rejection(happened),
        "verdict": decision and decision.verdict,
        "codes": decision.codes if decision else (),
        "details": _of_reasons(decision, expect.details, "details"),
        "messages": _of_reasons(decision, expect.messages, "message"),
        "remedies": _of_reasons(decision, expect.remedies, "remedy"),
        "explanations": _of_reasons(decision, expect.explanations, "explanation"),
        "obligations": [
            {"id": obligation.id, "parameters": obligation.parameters}
            for obligation in (decision.obligations if decision else ())
        ],
        "trace": {name: evaluation and getattr(evaluation.trace, name) for name in expect.trace or ()},
        "arguments": evaluation and evaluation.request and evaluation.request["context"]["arguments"],
        "pruned": _pruned(happened),
        "executed": evaluation is not None and evaluation.executed,
        "result": evaluation and _json_or_not(evaluation.result),
        "failure": failure and failure.code,
        "approval": approval and approval.state,
        "refused": happened.refused,
        "grant": "used" if evaluation and evaluation.grant_id and evaluation.executed else None,
        "markings": sorted(evaluation.markings) if evaluation else (),
        "touched": happened.touched,
        "flow": evaluation and _flow(evaluation.flow, expect.flow),
    }
    stated = [name for name in type(expect).model_fields if name in expect.model_fields_set]
    plain: dict[str, Any] = orjson.loads(orjson.dumps({name: values[name] for name in stated}))
    return plain


def mismatches(expected: dict[str, Any], actual: dict[str, Any], prefix: str = "") -> tuple[Mismatch, ...]:
    """Return the keys whose expected and actual values differ. An expected null equals only null.

    Codes and markings are compared as sets. An expected text or detail must be in at least one reason with its code.
    """
    return tuple(
        Mismatch(f"{prefix}{name}", stated, actual[name])
        for name, stated in expected.items()
        if not (equal if stated is None else _EQUAL.get(name, equal))(stated, actual[name])
    )


def equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal. The numbers 1 and 1.0 are equal; 1 and true are not."""
    return canonical(first) == canonical(second)


def has_fields(details: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Return whether the details of a reason have all of these fields and values. Other fields are ignored."""
    return all(name in details and equal(details[name], value) for name, value in fields.items())


def _same_set(first: Any, second: Any) -> bool:
    return second is not None and set(first) == set(second)


def _same_obligations(expected: Any, actual: Any) -> bool:
    """Return whether the obligations equal the expected obligations, each as often as expected, in any order."""
    whole = Counter(canonical(obligation) for obligation in actual)
    whole.subtract(canonical(obligation) for obligation in expected if isinstance(obligation, dict))
    if any(count < 0 for count in whole.values()):
        return False
    left = Counter(orjson.loads(text)["id"] for text in whole.elements())
    return left == Counter(name for name in expected if isinstance(name, str))


def _same_details(expected: Any, actual: Any) -> bool:
    return all(any(has_fields(details, fields) for details in actual[code]) for code, fields in expected.items())


def _same_texts(expected: Any, actual: Any) -> bool:
    return all(text in actual[code] for code, text in expected.items())


def _has_parts(expected: Any, actual: Any) -> bool:
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(_has_parts(part, actual[name]) for name, part in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return sorted(map(canonical, expected)) == sorted(map(canonical, actual))
    return equal(expected, actual)


_EQUAL: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "codes": _same_set,
    "details": _same_details,
    "messages": _same_texts,
    "remedies": _same_texts,
    "explanations": _same_texts,
    "flow": _has_parts,
    "markings": _same_set,
    "obligations": _same_obligations,
    "touched": _same_set,
}


def _of_reasons(decision: Decision | None, codes: Mapping[str, Any] | None, part: str) -> dict[str, list[Any]]:
    """Return the values of the field `part` in the reasons of a decision, for each of the codes."""
    reasons = decision.reasons if decision else ()
    return {code: [getattr(reason, part) for reason in reasons if reason.code == code] for code in codes or ()}


def _flow(flow: Mapping[str, Any] | None, expect: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the fields of `context.flow` that the expectation has; all fields if null is expected."""
    if flow is None:
        return None
    by_path = {argument["path"]: argument for argument in flow["arguments"]}
    if expect is None:
        return {**flow, "arguments": {path: argument["sources"] for path, argument in by_path.items()}}
    stated = expect.get("arguments", {})
    arguments = {path: _argument(by_path.get(path), fields) for path, fields in stated.items()}
    return {name: arguments if name == "arguments" else flow[name] for name in expect}


def _argument(argument: Mapping[str, Any] | None, expect: Any) -> Any:
    if argument is None or not isinstance(expect, dict):
        return argument and argument["sources"]
    links = [link["sources"] for link in argument["links"]]
    known = {**argument, "from": sorted({call["tool"] for call in argument["from"]}), "links": links}
    return {name: known.get(name, "no such field") for name in expect}


def _status(happened: Happened) -> str | None:
    # A step that the check of the plan corrected or dropped counts as transformed, unless the call was rejected.
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


def _pruned(happened: Happened) -> bool:
    if happened.planned is not None and happened.planned.pruned:
        return True
    outcome = happened.evaluation.outcome if happened.evaluation else None
    return outcome is not None and outcome.status is Status.TRANSFORMED and outcome.proposal is None


def _json_or_not(value: Any) -> Any:
    try:
        check_json(value)
    except JsonValueError:
        return f"<not JSON: {type(value).__name__}>"
    return value
