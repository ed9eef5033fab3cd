"""Proposals are read with the field names `tool` and `arguments`, or with `tool_name` and `payload`."""

import json
import math
from typing import Any

import pytest

from pdp.proposal import Proposal, ProposalRejectedError, RejectionCode


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"tool": "t", "arguments": {"a": 1}}, id="registry document"),
        pytest.param({"tool_name": "t", "payload": {"a": 1}}, id="tool boundary document"),
        pytest.param('{"tool": "t", "arguments": {"a": 1}}', id="text"),
        pytest.param(b'{"tool": "t", "arguments": {"a": 1.0}}', id="bytes"),
        pytest.param(Proposal(tool="t", arguments={"a": 1}), id="a proposal"),
    ],
)
def test_proposal_accepts_field_names_of_tool_calls_and_of_the_proposal_format(value: Any) -> None:
    assert Proposal.read(value) == Proposal(tool="t", arguments={"a": 1})


def test_missing_arguments_become_an_empty_object() -> None:
    assert Proposal.read({"tool": "t"}) == Proposal(tool="t", arguments={})


MANY = "value: more than 30000 values"
OBJECT = "value: more than 30000 values, or more than 1048576 bytes of text"


def shared(value: Any, levels: int) -> Any:
    """Return a small structure that contains `value` 2 ** `levels` times when it is written out as JSON."""
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param([], "a proposal is an object with tool and arguments, not a list", id="a list"),
        pytest.param("null", "a proposal is an object with tool and arguments, not null", id="null"),
        pytest.param({}, "tool has to be a string and arguments an object", id="empty"),
        pytest.param({"tool": 1}, "tool has to be a string and arguments an object", id="tool not a string"),
        pytest.param(
            {"tool": "t", "arguments": []}, "tool has to be a string and arguments an object", id="arguments a list"
        ),
        pytest.param(
            {"tool": "t", "arguments": {}, "approval": {}},
            "unknown field 'approval': a proposal has tool and arguments",
            id="unknown field",
        ),
        pytest.param(
            {"tool": "t", "payload": {}}, "unknown field 'payload': a proposal has tool and arguments", id="mixed"
        ),
        pytest.param(
            {"tool_name": "t", "payload": {}, "tool": "u"},
            "unknown field 'payload': a proposal has tool and arguments",
            id="both names",
        ),
        pytest.param("", "value: the text is empty", id="empty text"),
        pytest.param(b"\x00\xff", "value: not UTF-8 text", id="binary"),
        pytest.param(
            '{"tool": "t", "arguments": {"a": "\\udc00"}}', "arguments.a: lone surrogate in a string", id="surrogate"
        ),
        pytest.param(
            '{"tool": "t", "arguments": {"a": 1e400}}', "arguments.a: inf is not a number of JSON", id="1e400"
        ),
        pytest.param('{"tool": "t", "arguments": {"a": 1, "a": 2}}', "value: duplicate key in an object", id="twice"),
        pytest.param(
            b"x" * (1024 * 1024 + 1), "value: it has 1048577 bytes, but at most 1048576 are allowed", id="size"
        ),
        pytest.param(
            "é" * 524_289, "value: it has 1048578 bytes, but at most 1048576 are allowed", id="size of a text"
        ),
        pytest.param('{"tool": "t", "arguments": {"a": [' + "0," * 50_000 + "0]}}", MANY, id="many, text"),
        pytest.param("," * 50_001 + '"' + '\\"' * 400_000, MANY, id="many, and a text that does not end"),
        pytest.param("," * 50_001 + '"' + '\\"' * 400_000 + "\\", MANY, id="many, and an escape that does not end"),
        pytest.param("[" + '"",' * 50_001 + "[[", MANY, id="many texts"),
        pytest.param('"\\\\",' + "[]," * 50_000, MANY, id="many, after a backslash"),
        pytest.param({"tool": "t", "arguments": {"a": [[]] * 100_000}}, OBJECT, id="many, an object"),
        pytest.param({"tool": "t", "arguments": {"a": [0] * 100_000 + [math.nan]}}, OBJECT, id="many, first"),
        pytest.param({"tool": "t", "arguments": {"a": shared([], 28)}}, OBJECT, id="many, shared"),
        pytest.param({"tool": "t", "arguments": {"a": ["x" * 2**20] * 10_000}}, OBJECT, id="much text, shared"),
        pytest.param({"tool": "t", "arguments": {"a": [{"x" * 2**20: 1}] * 10_000}}, OBJECT, id="long keys, shared"),
        pytest.param(
            {"tool": "t", "arguments": {"k" * 900_000: [*range(9_000), math.nan]}},
            f"arguments.{'k' * 60}[9000]: nan is not a number of JSON",
            id="a long key",
        ),
        pytest.param(
            {"tool": "t", "arguments": {"a": [{"secret": {"secret": 2**53}}]}},
            "arguments.a[0].*.*: number beyond 2^53-1",
            id="keys in an argument",
        ),
        pytest.param(
            {"tool": "t", "arguments": {"a": {b"secret": 1}}}, "arguments.a: a key is not a string", id="bytes as a key"
        ),
    ],
)
def test_malformed_proposal_is_rejected_as_invalid_payload(value: Any, reason: str) -> None:
    with pytest.raises(ProposalRejectedError) as caught:
        Proposal.read(value)

    assert (caught.value.rejection, caught.value.message) == (RejectionCode.INVALID_PAYLOAD, reason)


def test_proposal_does_not_change_when_its_input_changes() -> None:
    arguments = {"amounts": [1]}
    proposal = Proposal.read({"tool": "t", "arguments": arguments})

    arguments["amounts"].append(1_000_000)

    assert proposal.arguments == {"amounts": [1]}


def test_value_count_ignores_commas_and_brackets_inside_texts() -> None:
    text = ",[{" * 30_000 + '\\"'
    values = [0] * 19_995

    proposal = Proposal.read(json.dumps({"tool": "t", "arguments": {"a": text, "b": values}}))

    assert proposal.arguments == {"a": text, "b": values}
