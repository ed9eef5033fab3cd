"""`pdp explain`: a line for a person, the checks, the rules with what they saw; and nothing sensitive in any of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pdp.decision import Reason
from pdp.execution.masking import Mask
from pdp.workbench.explain.wording import in_words, readable
from tests.support import ROOT
from tests.support.command_line import OPTIONS, Done, pdp, session_file, written
from tests.support.payments import ARGUMENTS, EXAMPLE, wire

if TYPE_CHECKING:
    from pathlib import Path

SANCTIONS = EXAMPLE / "policies/custom/concerns/sanctions/sanctions.rego"


def found(file: Path, text: str) -> int:
    """The number of the one line that is this text, blanks around it aside."""
    [line] = [number for number, line in enumerate(file.read_text().splitlines(), 1) if line.strip() == text]
    return line


def rule_line(file: Path, code: str) -> int:
    """The line of the rule below the METADATA with this code."""
    lines = file.read_text().splitlines()
    return next(
        number for number in range(found(file, f"#   code: {code}"), len(lines) + 1) if lines[number - 1][0] != "#"
    )


def concern(name: str) -> Path:
    return ROOT / f"policies/authz/concerns/{name}/{name}.rego"


EXCEEDED = (
    "STEP_UP because amount 47,500 is above your automatic limit 25,000 "
    f"(limits.rego:{rule_line(concern('limits'), 'limits.exceeded')})"
)


@pytest.fixture
def without_opa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PDP_OPA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def explained(proposal: object, *more: object, **files: object) -> Done:
    options = {**OPTIONS, **{f"-{name}": file for name, file in files.items()}}
    text = proposal if isinstance(proposal, bytes) else json.dumps(proposal).encode()
    return pdp("explain", "-", *(part for option in options.items() for part in option), *more, stdin=text)


def rule(done: Done, code: str) -> Any:
    return next(one for one in done.json["rules"] if one["code"] == code)


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_the_worked_example_with_a_custom_concern(tmp_path: Path) -> None:
    done = explained(wire(), "--json", "--policies", EXAMPLE / "policies")
    assert (done.code, done.err, done.json["line"]) == (3, "", EXCEEDED)
    assert [one["name"] for one in done.json["checks"] if one["result"] == "passed"] == [
        "proposal", "manifest", "schema", "invariants", "idempotency", "provenance", "writes", "request",
    ]  # fmt: skip
    assert [one["code"] for one in done.json["rules"] if one["fired"]] == [
        "effects.gate_satisfied", "risk.acceptable", "limits.exceeded",
    ]  # fmt: skip
    assert done.json["complete"] is True
    assert done.json["evaluation"] == {
        **pdp_decided(),
        "decision_id": done.json["evaluation"]["decision_id"],
        "bundle_revision": done.json["evaluation"]["bundle_revision"],
        "trace": done.json["evaluation"]["trace"],
    }
    assert rule(done, "sanctions.not_clear") == {
        "code": "sanctions.not_clear", "concern": "sanctions", "part": "deny", "title": "Beneficiary not clear",
        "file": str(SANCTIONS), "line": rule_line(SANCTIONS, "sanctions.not_clear"),
        "asked": True, "fired": False,
        "stopped": {
            "text": "not _clear",
            "file": str(SANCTIONS),
            "line": found(SANCTIONS, "not _clear"),
            "seen": [
                {"name": "_clear", "value": True, "defined": True},
                {"name": "input.context.sanctions_status", "value": "clear", "defined": True},
            ],
            "because": [],
        },
    }  # fmt: skip
    approvals = rule(done, "approvals.required")["stopped"]
    assert (approvals["text"], approvals["seen"]) == (
        "count(limits.exceeded) == 0",
        [
            {
                "name": "limits.exceeded",
                "value": [{"argument": "amount", "limit": "wire.auto_approved", "value": 47500}],
                "defined": True,
            }
        ],
    )
    concerns = list(dict.fromkeys(one["concern"] for one in done.json["rules"]))
    assert concerns.index("manifest") < concerns.index("limits") < concerns.index("sanctions")
    assert concerns[-1] == "decision"


def pdp_decided() -> Any:
    options = [part for option in OPTIONS.items() for part in option]
    text = json.dumps(wire()).encode()
    return pdp("decide", "-", *options, "--policies", EXAMPLE / "policies", "--json", stdin=text).json


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_as_text_with_both_engines() -> None:
    done = explained(wire())
    assert (done.code, done.err) == (3, "")
    lines = done.out.splitlines()
    assert lines[0] == EXCEEDED
    assert lines[2:5] == [
        "  proposal     passed       it can be read",
        "  manifest     passed       initiate_wire is a tool of manifest 2026.07.1",
        "  schema       passed       the arguments match",
    ]
    place = next(at for at, text in enumerate(lines) if "scopes.missing" in text)
    assert lines[place].startswith("  scopes       did not fire scopes.missing  ")
    stopped = found(concern("scopes"), "count(missing) > 0")
    assert lines[place + 1].strip() == f"because count(missing) > 0 (scopes.rego:{stopped})  missing is empty"
    assert explained(wire(), "--engine", "sidecar").out == done.out


@pytest.mark.usefixtures("without_opa")
def test_without_opa_what_fired_and_a_note() -> None:
    done = explained(wire())
    assert (done.code, done.err) == (3, "")
    lines = done.out.splitlines()
    assert lines[0] == EXCEEDED
    assert lines[-1] == "  rules that did not fire: not known without OPA 1.22.0; get it with: pdp opa install"
    assert "limits       fired        limits.exceeded" in done.out
    assert "did not fire " not in done.out
    document = explained(wire(), "--json").json
    assert document["complete"] is False
    assert {one["fired"] for one in document["rules"]} == {True}


REJECTED = [
    ({"tool": "rm", "arguments": {}}, {}, "manifest", "'rm' is not a tool of manifest 2026.07.1"),
    (wire(amount="x"), {}, "schema", 'arguments.amount: "x" is not of type "number"'),
    (
        wire(),
        {"idempotency_key": None},
        "idempotency",
        "initiate_wire needs an idempotency key, and the session has none",
    ),
    (
        b"{",
        {},
        "proposal",
        "value: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
]


@pytest.mark.parametrize(("proposal", "changes", "check", "reason"), REJECTED)
def test_what_was_rejected_names_the_check(
    tmp_path: Path, proposal: Any, changes: dict[str, Any], check: str, reason: str
) -> None:
    done = explained(proposal, "--json", s=session_file(tmp_path, **changes))
    assert done.code == 4
    assert done.json["line"] == f"REJECTED because {reason}; the policy was not asked"
    results = [(one["name"], one["result"]) for one in done.json["checks"]]
    failed = [name for name, result in results if result == "failed"]
    assert failed == [check]
    position = results.index((check, "failed"))
    assert {result for _, result in results[:position]} <= {"passed"}
    assert {result for _, result in results[position + 1 :]} <= {"not reached"}
    assert next(one["text"] for one in done.json["checks"] if one["result"] == "failed") == reason
    assert done.json["rules"] == []


def test_exit_codes_are_those_of_decide() -> None:
    assert explained(wire(amount=20000)).code == 0
    both = explained(wire(), "--policies", "x", "--bundle", "y")
    assert both == Done(
        2,
        "",
        "error: --bundle and --policies exclude each other: a bundle holds its policies\n"
        "    hint: build them into the bundle: pdp bundle build --policies DIR -o FILE\n",
    )
    assert explained(wire(), m="missing.yaml").code == 2


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
@pytest.mark.parametrize("mode", [(), ("--json",)])
@pytest.mark.parametrize("amount", [47500, 20000.5, -1])
def test_sensitive_arguments_are_nowhere(tmp_path: Path, mode: tuple[str, ...], amount: float) -> None:
    """Not in resource or context, where mappings copy them, nor in details, messages and what rules saw."""
    governance = yaml.safe_load((EXAMPLE / "governance.yaml").read_text())
    governance["actions"]["initiate_wire"]["sensitive"] = ["beneficiary_id", "source_account", "amount"]
    file = written(tmp_path / "governance.yaml", yaml.safe_dump(governance))
    done = explained(wire(amount=amount), *mode, g=file)
    assert done.code in (0, 3, 4)
    assert "bene-acme-441" not in done.out
    assert str(ARGUMENTS["source_account"]) not in done.out
    for shown in ("47500", "47,500", "20000.5", "20,000.5", "amount -1"):
        assert shown not in done.out
    assert "***" in done.out
    rejected = explained(wire(source_account=4711471147), *mode, g=file)
    assert rejected.code == 4
    assert "4711471147" not in rejected.out


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_hostile_values_cannot_steer_the_terminal() -> None:
    done = explained(wire(beneficiary_id="\x1b[2J\nALLOW", reference="\u202e"))
    assert all(text.isprintable() for text in done.out.split("\n"))
    done = explained({"tool": "\x1b[2J\u202e", "arguments": {}})
    assert all(text.isprintable() for text in done.out.split("\n"))


REQUEST: dict[str, Any] = {
    "subject": {"properties": {"limits": {"l": 25000}}},
    "context": {"arguments": {"amount": -5}},
}
WORDS = [
    (Reason("limits.exceeded", "", {"limit": "l", "argument": "amount", "value": 1234567.5}), {},
     "amount 1,234,567.5 is above your automatic limit 25,000"),
    (Reason("limits.exceeded", "", {"limit": "l", "argument": "amount", "value": 300}),
     {"subject": {"properties": {"limits": {"l": 25000}, "act": {"limits": {"l": 200}, "act": {}}}}},
     "amount 300 is above your automatic limit 200"),
    (Reason("limits.exceeded", "", {"limit": "m", "argument": "amount", "value": 3}), {},
     "amount 3 needs the limit m, and none is given"),
    (Reason("limits.exceeded", "The amount.", {"argument": "amount"}), {}, "the amount (argument amount)"),
    (Reason("limits.invalid", "", {"limit": "l", "argument": "amount"}), {},
     "amount -5 is not a number of at least zero"),
    (Reason("scopes.missing", "", {"missing": ["a"]}), {}, "you lack the scope a"),
    (Reason("scopes.missing", "", {"missing": ["a", "b"]}), {}, "you lack the scopes a, b"),
    (Reason("approvals.required", "", {"approval": {"approvers": ["boss"]}}), {}, "a person has to approve it: boss"),
    (Reason("approvals.required", "", {"approval": {}}), {}, "a person has to approve it"),
    (Reason("markings.not_cleared", "", {"missing": ["pii"]}), {}, "you are not cleared for the marking pii"),
    (Reason("purposes.not_allowed", "", {"purpose": ""}), {}, 'the tool is not for the purpose ""'),
    (Reason("mine.own", "Some thing is wrong.", {"b": [1, 2000], "a": None, "c": {"d": 1}}), {},
     "some thing is wrong (a null; b 1, 2,000)"),
    (Reason("mine.own", "IBAN is wrong", {}), {}, "IBAN is wrong"),
    (Reason("mine.own", "", {}), {}, "mine.own"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "changes", "words"), WORDS)
def test_reasons_in_words(reason: Reason, changes: dict[str, Any], words: str) -> None:
    assert in_words(reason, {**REQUEST, **changes}) == words


def test_numbers_are_readable() -> None:
    shown = [readable(value) for value in (0, 25000, 25000.0, -1234.25, True, None, "", [], ["x", 1], {"b": 1, "a": 2})]
    assert shown == [
        "0", "25,000", "25,000", "-1,234.25", "true", "null", '""', "empty", "x, 1", '{"a":2,"b":1}',
    ]  # fmt: skip


def test_a_mask_hides_values_and_only_these() -> None:
    mask = Mask(
        ["iban", "amount", "flag", "deep"], {"iban": "DE89", "amount": 4750.0, "flag": True, "deep": {"k": ["abc"]}}
    )
    hidden = mask.value(
        {
            "iban": "other", "copy": "DE89", "text": "to DE89, 4,750.0", "n": 4750, "m": 47500, "flag": 1, "b": True,
            "list": ["abc", "ab"], "DE89": 0, "say": "47500 is not 4750",
        }
    )  # fmt: skip
    assert hidden == {
        "iban": "***", "copy": "***", "text": "to ***, ***", "n": "***", "m": 47500, "flag": "***", "b": True,
        "list": ["***", "ab"], "***": 0, "say": "47500 is not ***",
    }  # fmt: skip
    assert mask.named("input.context.arguments.flag", False) == "***"
    assert mask.named('input.context.arguments["x"].flag', False) is False
    assert Mask([], {"iban": "DE89"}).value({"iban": "DE89"}) == {"iban": "DE89"}
