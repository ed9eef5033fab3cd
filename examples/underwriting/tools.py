"""The underwriting tools, one per pattern, with stand-ins for the register, the rates and the policy system.

`deployment()` is what the application tells every run: where rates come from, which version the register has, and how
policies are marked. Staging needs no function: the store of actions stages.
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
    """Read the sum behind the words "sum insured"."""
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
    """Stands in for the register of policyholders."""

    def __init__(self, records: Mapping[str, Any] | None = None) -> None:
        self._records = REGISTER if records is None else records

    def lookup_policyholder(
        self,
        identifier: str,
        source: dict[str, Any],  # noqa: ARG002 - the pattern's names
        asOf: str | None = None,  # noqa: ARG002, N803 - likewise
    ) -> dict[str, Any]:
        """Ask the register."""
        if identifier not in self._records:
            raise NotFoundError("the register has no such policyholder")
        return dict(self._records[identifier])


def validate_submission(
    candidate: dict[str, Any],
    rulePack: dict[str, Any],  # noqa: ARG001, N803 - the pattern's names
    ontologyPin: str | None = None,  # noqa: ARG001, N803 - likewise
) -> dict[str, Any]:
    """Check what the rule pack asks of a submission."""
    claims = candidate.get("claims", 0)
    trace = [
        {"rule": "sum-stated", "verdict": "pass" if "sum_insured" in candidate else "block"},
        {"rule": "claims-history", "verdict": "warn" if claims > REFERRED else "pass", "message": f"{claims} claims"},
    ]
    verdicts = {rule["verdict"] for rule in trace}
    return {"verdict": next(one for one in ("block", "warn", "pass") if one in verdicts), "trace": trace}


def classify_risk(subject: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - of the pattern
    """Sort by construction and claims; concrete was never written, so no band knows it."""
    bands = {"brick": "standard", "timber": "substandard"}
    if subject["construction"] not in bands:
        raise OutOfDistributionError("no risk of this construction was ever written")
    band = "preferred" if bands[subject["construction"]] == "standard" and not subject.get("claims") else None
    rationale = f"{subject['construction']}, {subject.get('claims', 0)} claims"
    return {
        "band": band or bands[subject["construction"]], "confidence": 0.9, "rationale": rationale, "evidence": [],
    }  # fmt: skip


def compose_quote(parts: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Fill the template in."""
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
    """Sum, or find the largest of, what is insured."""
    sums = [POLICIES[one["id"]] for one in objects if one["id"] in POLICIES]
    value = sum(sums) if op == "sum" else max(sums, default=0.0)
    return {"name": "exposure", "value": value, "unit": "EUR", "window": window}


def convert_premium(value: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """Convert at the rate that was pinned when the run started."""
    rate = pinned("ecb").value[target["currency"]]
    return {"amount": round(value["amount"] * rate, 2), "currency": target["currency"]}


def search_guidelines(query: str, corpus: dict[str, Any], k: int) -> dict[str, Any]:  # noqa: ARG001 - there is one
    """Find the guidelines that share words with the query, those with most of them first."""
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
    """Stands in for the policy system: it insures nobody, and remembers what it was asked for."""

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
        """Take it back."""
        self.policies.pop(policy_number, None)
        return {"policy_number": policy_number}


def withdraw_task(task: str) -> dict[str, Any]:
    """Take a task back."""
    return {"task": task}


def tools(world: Mapping[str, MutableMapping[str, Any]] | None = None) -> dict[str, Callable[..., Any]]:
    """Return the tools by name, with a policy system of their own, or on the systems of a scenario's world."""
    system, register = PolicySystem(world and world["policy-system"]), Register(world and world["register"])
    functions: list[Callable[..., Any]] = [
        extract_insured_sum, register.lookup_policyholder, validate_submission, classify_risk, compose_quote,
        request_approval, aggregate_exposure, convert_premium, search_guidelines, withdraw_task, system.issue_policy,
        system.cancel_policy, system.adjust_premium,
    ]  # fmt: skip
    return {function.__name__: function for function in functions}


class RateSource:
    """Stands in for the bank's rates: a day passes between two readings, and after the last day none."""

    def __init__(self, days: Iterable[str] = tuple(RATES)) -> None:
        self._days = list(days)

    def read(self) -> Pin:
        """Return today's rates, by the day that they are of."""
        day = self._days.pop(0) if len(self._days) > 1 else self._days[0]
        return Pin(day, RATES[day])


def deployment(pins: Mapping[str, str] | None = None) -> Deployment:
    """Return what holds for every run.

    `pins`: for a replay, the versions of sources as the record of the run names them (`Evaluation.pins`).
    """
    rates = RateSource() if pins is None else RateSource([pins["ecb"]])
    return Deployment(
        sources={"ecb": rates.read},
        source_versions={"register": lambda: "r-2026.07.1"},
        markings_of=lambda kind, name: ["pii.medium"] if (kind, name) == ("policy", "p-1") else [],
    )
