"""Where values came from, in words: a sentence for each code and source, whatever the details are."""

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
STRANGERS = "The run has read what strangers wrote, in results of list_files, read_mail; "


def details(*sources: str, path: str = "/to/0", **more: Any) -> dict[str, Any]:
    calls = [] if sources == ("model",) else [CALL]
    return {"argument": path, "role": "destination", "sources": list(sources), "from": calls, **more}


@pytest.mark.parametrize(
    ("code", "found", "expected"),
    [
        ("target_untrusted", details("untrusted"),
         "The value of `to/0` was read in the result of read_mail (call c-17), and you did not name it."),
        ("target_untrusted", details("party"),
         "The value of `to/0` took part in what read_mail (call c-17) returned, and anybody can take part."),
        ("value_untrusted", details("model", path="/a~1b/x"),
         "The value of `a/b/x` comes from the model alone: neither you nor any result has it."),
        ("value_untrusted", details("model", "untrusted", path=""),
         f"The value of an argument that is not listed {READ}"),
        ("link_untrusted", details("untrusted"),
         f"A link, mail address or account in `to/0` {READ}"),
        ("target_untrusted", {**details("model", "untrusted"), "from": []},
         "The value of `to/0` may be a stranger's, and you did not name it."),
        ("address_composed", details("model", "untrusted"),
         "Nobody wrote `to/0` as a whole: its host is known from read_mail (call c-17), and the rest is the model's."),
        ("address_composed", details("model", "prompt", "untrusted"),
         "Nobody wrote `to/0` as a whole: its host is known from you, and the rest is the model's."),
        ("address_composed", details("model"),
         "Nobody wrote `to/0` as a whole: neither you nor any result has its host, and the rest is the model's."),
        ("egress", details("trusted", markings=["account", "health"]),
         f"{DATA}, and where it would go, `to/0`, was written by the system into the result of read_mail (call c-17)."),
        ("destructive", {}, STRANGERS + "you did not ask for this call, or did not name each of its targets."),
        ("aimless", {}, STRANGERS + "the call is aimed at nothing, and you did not ask for it."),
        ("not_anchored", {}, STRANGERS + "the call holds none of your words."),
        ("off_plan", {}, STRANGERS + "the plan that was made before has only: list_files."),
        ("unknown", {}, None),
    ],
)  # fmt: skip
def test_a_sentence_for_each_finding(code: str, found: dict[str, Any], expected: str | None) -> None:
    assert explanation(f"flow.{code}", found, FLOW) == expected


def test_the_best_source_speaks_for_a_value_and_links_stand_beneath_their_text() -> None:
    assert list(origins(FLOW)) == [
        "the run has read what strangers wrote: list_files, read_mail",
        "the run has read account data",
        "`to/0` (destination) is in your own words",
        "`body` (body) comes from the model alone: neither you nor any result has it",
        "a link in `body` was read in the result of read_mail (call c-17), and you did not name it",
    ]
    assert list(origins({"untrusted": [], "markings": []})) == ["the run has read nothing that strangers wrote"]
    assert list(origins(None)) == []


def test_nothing_steers_a_terminal_and_nothing_is_endless() -> None:
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
def test_whatever_the_details_are_a_text_comes_out(code: str, found: dict[str, Any], flow: dict[str, Any]) -> None:
    text = explanation(f"flow.{code}", found, flow)

    assert (text is None) == (code == "unknown")
