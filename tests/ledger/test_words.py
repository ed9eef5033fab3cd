"""Sentences that explain the origin of values, for each reason code and source and for malformed details."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdp.ledger.words import explanation, origins

CALL = {"tool": "read_mail", "call": "c-17"}
FLOW: dict[str, Any] = {
    "tainted": True, "untrusted": ["list_files", "read_mail"], "markings": ["account"], "plan": ["list_files"],
    "arguments": [
        {"path": "/to/0", "role": "destination", "sources": ["prompt", "untrusted"], "from": [CALL], "links": []},
        {"path": "/body", "role": "body", "sources": ["model"], "from": [],
         "links": [{"sources": ["untrusted"], "from": [CALL]}]},
    ],
}  # fmt: skip
CODES = (
    "address_composed", "address_untrusted", "aimless", "destructive", "egress", "link_untrusted", "not_anchored",
    "off_plan", "target_untrusted", "unknown", "value_untrusted",
)  # fmt: skip
DATA = "The run has read account, health data"
READ = "was read in the result of read_mail (call c-17), and you did not name it."
TAINTED = "The run has read untrusted text in results of list_files, read_mail; "


def details(*sources: str, path: str = "/to/0", **more: Any) -> dict[str, Any]:
    calls = [] if sources == ("model",) else [CALL]
    return {"argument": path, "role": "destination", "sources": list(sources), "from": calls, **more}


@pytest.mark.parametrize(
    ("code", "finding", "expected"),
    [
        ("target_untrusted", details("untrusted"),
         "The value of `to/0` was read in the result of read_mail (call c-17), and you did not name it."),
        ("target_untrusted", details("party"),
         "The value of `to/0` is a participant in the result of read_mail (call c-17), and anyone can become one."),
        ("value_untrusted", details("model", path="/a~1b/x"),
         "The value of `a/b/x` comes only from the model: neither you nor any result contains it."),
        ("value_untrusted", details("model", "untrusted", path=""),
         f"The value of an argument that is not listed {READ}"),
        ("link_untrusted", details("untrusted"),
         f"A link, mail address or account in `to/0` {READ}"),
        ("target_untrusted", {**details("model", "untrusted"), "from": []},
         "The value of `to/0` may be untrusted, and you did not name it."),
        ("address_composed", details("model", "untrusted"),
         "The model composed `to/0`: its host comes from read_mail (call c-17), the rest from the model."),
        ("address_composed", details("model", "prompt", "untrusted"),
         "The model composed `to/0`: its host comes from you, the rest from the model."),
        ("address_composed", details("endorsed", "model"),
         "The model composed `to/0`: its host comes from an approval, the rest from the model."),
        ("address_composed", details("model"),
         "The model composed `to/0`: neither you nor any result contains its host."),
        ("egress", details("trusted", markings=["account", "health"]),
         DATA + ", and the call's destination "
         + "`to/0` was written by the system into the result of read_mail (call c-17)."),
        ("destructive", {}, TAINTED + "you did not ask for this call or did not name each of its targets."),
        ("aimless", {}, TAINTED + "the call has no target, and you did not ask for it."),
        ("not_anchored", {}, TAINTED + "the call contains none of your words."),
        ("off_plan", {}, TAINTED + "the plan made before this contains only: list_files."),
        ("unknown", {}, None),
    ],
)  # fmt: skip
def test_explanation_of_flow_labels_has_a_sentence_for_each_code(
    code: str, finding: dict[str, Any], expected: str | None
) -> None:
    assert explanation(f"flow.{code}", finding, FLOW) == expected


def test_origins_describes_the_most_trusted_source_of_each_argument_and_link() -> None:
    assert list(origins(FLOW)) == [
        "the run has read untrusted text from: list_files, read_mail",
        "the run has read account data",
        "`to/0` (destination) is in your own words",
        "`body` (body) comes only from the model: neither you nor any result contains it",
        "a link in `body` was read in the result of read_mail (call c-17), and you did not name it",
    ]
    assert list(origins({"untrusted": [], "markings": []})) == ["the run has read no untrusted text"]
    assert list(origins(None)) == []


def test_explanation_of_hostile_details_is_printable_and_short() -> None:
    found = details("untrusted", path="/\x1b[2J" + "x" * 999) | {"from": [{"tool": "t", "call": "\n" * 999}] * 99}

    text = explanation("flow.target_untrusted", found, FLOW) or ""

    assert text.isprintable()
    assert len(text) < 3000


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(("argument", "from", "sources", "markings", "untrusted", "plan", "tool", "call"))


@given(st.sampled_from(CODES), st.dictionaries(NAMES, odd), st.dictionaries(NAMES, odd))
def test_explanation_of_malformed_details_raises_no_error(
    code: str, found: dict[str, Any], flow: dict[str, Any]
) -> None:
    text = explanation(f"flow.{code}", found, flow)

    assert (text is None) == (code == "unknown")
