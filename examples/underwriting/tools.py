"""The underwriting tools, one per pattern, with simulated register, rates and policy system.

`deployment()` returns the settings of every run: the source of rates, the version of the register, and the markings of
policies. Staging needs no function, because the store of actions stages.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from pdp import Deployment
from pdp.tools import NotFoundError, OutOfDistributionError, Pin, pinned

DOCUMENTS = {"sub-7": "Warehouse in Izmir, brick, sum insured 400000 EUR."}
REGISTER = {"ph-1": {"number": "ph-1", "name": "Deniz A.", "claims": 1}}
POLICIES = {"p-1": 400000.0, "p-2": 250000.0}
GUIDELINES = {
    "guide/construction": "Timber is substandard above 250000 EUR.",
    "guide/claims": "More than three claims are referred.",
}
RATES = {"2026-07-01": {"TRY": 47.5, "USD": 1.17}, "2026-07-02": {"TRY": 50.0, "USD": 1.2}}
REFERRED = 3


def extract_insured_sum(source: dict[str, Any]) -> dict[str, Any]:
    """Return the amount after the words "sum insured"."""
    text = DOCUMENTS.get(source["id"], "")
    _, found, rest = text.partition("sum insured ")
    if not found:
        raise NotFoundError("the document states no sum insured")
    amount, currency = rest.rstrip(".").split(" ")
    start = len(text) - len(rest)
    return {
        "value": {"amount": float(amount), "currency": currency},
        "evidence": {"source": source, "start": start, "end": len(text) - 1, "text": rest.rstrip(".")},
        "confidence": 0.98,
    }


class Register:
    """A simulated register of policyholders."""

    def __init__(self, records: Mapping[str, Any] | None = None) -> None:
        self._records = REGISTER if records is None else records

    def lookup_policyholder(
        self,
        identifier: str,
        source: dict[str, Any],  # noqa: ARG002 - required by the pattern
        asOf: str | None = None,  # noqa: ARG002, N803 - required by the pattern
    ) -> dict[str, Any]:
        """Return a policyholder of the register."""
        if identifier not in self._records:
            raise NotFoundError("the register has no such policyholder")
        return dict(self._records[identifier])


def validate_submission(
    candidate: dict[str, Any],
    rulePack: dict[str, Any],  # noqa: ARG001, N803 - required by the pattern
    ontologyPin: str | None = None,  # noqa: ARG001, N803 - required by the pattern
) -> dict[str, Any]:
    """Check a submission against the rule pack."""
    claims = candidate.get("claims", 0)
    trace = [
        {"rule": "sum-stated", "verdict": "pass" if "sum_insured" in candidate else "block"},
        {"rule": "claims-history", "verdict": "warn" if claims > REFERRED else "pass", "message": f"{claims} claims"},
    ]
    verdicts = {rule["verdict"] for rule in trace}
    return {"verdict": next(one for one in ("block", "warn", "pass") if one in verdicts), "trace": trace}


def classify_risk(subject: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - the pattern
    """Classify by construction and claims. No band includes concrete, which was never insured."""
    bands = {"brick": "standard", "timber": "substandard"}
    if subject["construction"] not in bands:
        raise OutOfDistributionError("no risk of this construction was ever written")
    band = "preferred" if bands[subject["construction"]] == "standard" and not subject.get("claims") else None
    rationale = f"{subject['construction']}, {subject.get('claims', 0)} claims"
    return {
        "band": band or bands[subject["construction"]], "confidence": 0.9, "rationale": rationale, "evidence": [],
    }  # fmt: skip


def compose_quote(parts: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Fill in the template."""
    premium = parts["premium"]
    return {
        "text": f"{template['id']}: {parts['submission']['policyholder']}, {premium['amount']} {premium['currency']}"
    }


def request_approval(
    subject: dict[str, Any], queue: str, rationale: str, evidence: list[Any], sla: str = "PT4H"
) -> dict[str, Any]:
    """Put a task into a queue."""
    return {
        "id": f"task-{subject['id']}", "subject": subject, "queue": queue, "rationale": rationale, "evidence": evidence,
        "sla": sla,
    }  # fmt: skip


def aggregate_exposure(objects: list[dict[str, Any]], window: dict[str, Any], op: str) -> dict[str, Any]:
    """Return the sum or the largest of the insured amounts."""
    sums = [POLICIES[one["id"]] for one in objects if one["id"] in POLICIES]
    value = sum(sums) if op == "sum" else max(sums, default=0.0)
    return {"name": "exposure", "value": value, "unit": "EUR", "window": window}


def convert_premium(value: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """Convert an amount at the rate pinned at the start of the run."""
    rate = pinned("ecb").value[target["currency"]]
    return {"amount": round(value["amount"] * rate, 2), "currency": target["currency"]}


def search_guidelines(query: str, corpus: dict[str, Any], k: int) -> dict[str, Any]:  # noqa: ARG001 - only one corpus
    """Return the guidelines that share words with the query, best match first."""
    words = set(query.lower().split())
    scored = [(len(words & set(text.lower().split())), name, text) for name, text in GUIDELINES.items()]
    ranked = sorted((one for one in scored if one[0]), key=lambda one: (-one[0], one[1]))
    snapshot = "sha256:" + hashlib.sha256(repr(sorted(GUIDELINES.items())).encode()).hexdigest()[:16]
    spans = [
        {"source": {"id": name, "kind": "document"}, "start": 0, "end": len(text), "text": text}
        for _, name, text in ranked
    ]
    return {"spans": spans[:k], "retrievalSnapshotId": snapshot}


class PolicySystem:
    """A simulated policy system: it issues no real policies and records its calls."""

    def __init__(self, policies: MutableMapping[str, Any] | None = None) -> None:
        self.policies: MutableMapping[str, Any] = {} if policies is None else policies

    def issue_policy(self, policyholder: str, premium: dict[str, Any]) -> dict[str, Any]:
        """Issue a policy."""
        number = f"pol-{len(self.policies) + 1:03}"
        self.policies[number] = (policyholder, premium)
        return {"policy_number": number}

    def adjust_premium(self, policy_number: str, premium: float) -> dict[str, Any]:
        """Set the premium of a policy."""
        self.policies[policy_number] = premium
        return {"policy_number": policy_number, "premium": premium}

    def cancel_policy(self, policy_number: str) -> dict[str, Any]:
        """Cancel a policy."""
        self.policies.pop(policy_number, None)
        return {"policy_number": policy_number}


def withdraw_task(task: str) -> dict[str, Any]:
    """Withdraw a task."""
    return {"task": task}


def tools(world: Mapping[str, MutableMapping[str, Any]] | None = None) -> dict[str, Callable[..., Any]]:
    """Return the tools by name, with a new policy system or the systems of a scenario's world."""
    system, register = PolicySystem(world and world["policy-system"]), Register(world and world["register"])
    functions: list[Callable[..., Any]] = [
        extract_insured_sum, register.lookup_policyholder, validate_submission, classify_risk, compose_quote,
        request_approval, aggregate_exposure, convert_premium, search_guidelines, withdraw_task, system.issue_policy,
        system.cancel_policy, system.adjust_premium,
    ]  # fmt: skip
    return {function.__name__: function for function in functions}


class RateSource:
    """A simulated source of rates: each reading is a day later, until the last day."""

    def __init__(self, days: Iterable[str] = tuple(RATES)) -> None:
        self._days = list(days)

    def read(self) -> Pin:
        """Return the current rates with their date."""
        day = self._days.pop(0) if len(self._days) > 1 else self._days[0]
        return Pin(day, RATES[day])


def deployment(pins: Mapping[str, str] | None = None) -> Deployment:
    """Return the settings of every run. For a replay, `pins` are the source versions of the recorded run."""
    rates = RateSource() if pins is None else RateSource([pins["ecb"]])
    return Deployment(
        sources={"ecb": rates.read},
        source_versions={"register": lambda: "r-2026.07.1"},
        markings_of=lambda kind, name: ["pii.medium"] if (kind, name) == ("policy", "p-1") else [],
    )
