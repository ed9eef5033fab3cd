"""An AuthZEN answer is an ALLOW only if the caller supports every obligation. Otherwise, the answer is a DENY."""

from typing import Any

import pytest

from pdp.decision import Decision, Obligation, Reason, Verdict
from pdp.service.authzen.evaluation import answer_context, fulfillable


def _allowed(*ids: str) -> Decision:
    duties = tuple(Obligation(name, Verdict.ALLOW, {"fields": ["/iban"]}) for name in ids)
    reason = Reason("effects.gate_satisfied", "It is.", {})
    return Decision(Verdict.ALLOW, (reason,), duties, "decision-1", "sha256:x", 1)


@pytest.mark.parametrize(
    ("duties", "context", "missing"),
    [
        ((), {}, None),
        (("note", "log_level"), {}, None),
        (("redact",), {"supported_obligations": ["mark_result", "redact"]}, None),
        (("redact",), {}, "redact"),
        (("redact", "mark_result"), {"supported_obligations": ["redact"]}, "mark_result"),
        (("redact",), {"supported_obligations": "redact"}, "redact"),
        (("redact",), {"supported_obligations": [["redact"], None]}, "redact"),
    ],
)
def test_allow_becomes_a_deny_if_the_caller_does_not_support_an_obligation(
    duties: tuple[str, ...], context: dict[str, Any], missing: str | None
) -> None:
    decision = fulfillable(_allowed(*duties), context)

    if missing is None:
        assert decision == _allowed(*duties)
    else:
        assert (decision.verdict, decision.codes) == (Verdict.DENY, ("obligations.unfulfillable",))
        assert decision.reasons[0].message == f"{missing}: not listed in context.supported_obligations"


def test_answer_lists_only_obligations_that_the_caller_must_fulfil() -> None:
    assert answer_context(_allowed("note", "redact"), None, "https://pdp.example.com") == {
        "obligations": [{"id": "decision-1-1", "type": "redact", "properties": {"fields": ["/iban"]}}]
    }
    assert answer_context(_allowed("note"), None, "https://pdp.example.com") == {}
