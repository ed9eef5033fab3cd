"""Roles of arguments that JSON Pointers give, and arguments that equal their default."""

from typing import Any

import pytest

from pdp.ledger.ledger import MemoryLedger
from pdp.ledger.summary import Tracker
from pdp.manifest.effective import effective_tool
from pdp.manifest.model import DeclaredTool
from pdp.session import Session

_TEXT = {"type": "string"}
_SCHEMA = {
    "type": "object",
    "properties": {
        "to": _TEXT,
        "channel": {"type": "string", "default": "general"},
        "limit": {"type": "integer", "default": 100},
        "pays": {"type": "array", "items": {"properties": {"to": _TEXT, "sum": _TEXT, "kind": _TEXT}}},
    },
}
_SESSION = Session.read({"claims": {"sub": "u"}, "run_id": "r", "prompt": ["Send it to bob@example.com"]})


def _tracker(roles: dict[str, str]) -> Tracker:
    entry = {"name": "send_it", "schema": _SCHEMA, "effect_class": "commit-low", "roles": roles}
    return Tracker(effective_tool(DeclaredTool.model_validate(entry), None), frozenset(("to", "sum", "kind")))


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"/pays/*/to": "destination"}, {"/pays/0/to": "destination", "/pays/1/to": "destination"}),
        (
            {"pays": "object", "/pays/*/kind": "value"},
            {"/pays/0/kind": "value", "/pays/0/to": "object", "/pays/1/to": "object"},
        ),
        (
            {"/pays/*/*": "value", "/pays/*/to": "destination", "/pays/*": "object"},
            {"/pays/0/kind": "value", "/pays/0/to": "destination", "/pays/1/to": "destination"},
        ),
        ({"/to/x": "body", "/pays/*/to/x": "body"}, {}),
    ],
)
def test_most_precise_pointer_gives_a_value_its_role(roles: dict[str, str], expected: dict[str, str]) -> None:
    arguments = {"to": "ann", "pays": [{"to": "bob", "kind": "fast"}, {"to": "cid"}]}

    flow = _tracker(roles).call_flow(arguments, _SESSION, MemoryLedger(), 1.0)

    assert {argument["path"]: argument["role"] for argument in flow.context["arguments"]} == expected


def test_approved_records_endorse_values_only_for_the_target_of_their_record() -> None:
    ledger, tracker = MemoryLedger(), _tracker({"/pays/*/to": "destination", "/pays/*/sum": "value"})
    approved = [{"to": "Ann-1", "sum": "10"}, {"to": "Bob-1", "sum": "5000"}]
    flow = tracker.call_flow({"pays": approved}, _SESSION, ledger, 1.0)
    ledger.write(flow.run, flow.labels, tracker.endorsed(flow, "approved"), 1.0)

    def endorsed(*pays: dict[str, str]) -> list[str]:
        flow = tracker.call_flow({"pays": list(pays)}, _SESSION, ledger, 1.0)
        return [item["path"] for item in flow.context["arguments"] if "endorsed" in item["sources"]]

    assert endorsed(*approved) == ["/pays/0/sum", "/pays/0/to", "/pays/1/sum", "/pays/1/to"]
    assert endorsed({"to": "Ann-1", "sum": "5000"}, {"to": "Bob-1", "sum": "10"}) == ["/pays/0/to", "/pays/1/to"]
    assert endorsed({"to": "Bob-1", "sum": "10"}, {"to": "Ann-1", "sum": "5000"}) == ["/pays/0/to", "/pays/1/to"]


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"channel": "general", "limit": 100}, []),
        ({"channel": "General", "limit": 100.0}, ["/channel"]),
        ({"channel": "random", "limit": "100"}, ["/channel", "/limit"]),
        ({"channel": ["general"], "limit": 99}, ["/channel/0", "/limit"]),
    ],
)
def test_argument_that_equals_its_default_is_not_listed(arguments: dict[str, Any], paths: list[str]) -> None:
    tracker = _tracker({"channel": "destination", "limit": "value"})

    flow = tracker.call_flow(arguments, _SESSION, MemoryLedger(), 1.0)

    assert [argument["path"] for argument in flow.context["arguments"]] == paths
