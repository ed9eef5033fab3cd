"""`pdp decide`: its output and exit codes for different proposals, claims and options.

Other files test unusable files (test_files.py), policies and bundles (test_bundle.py), and OPA (test_opa.py).
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.verify import verify_chain
from pdp.engine.bundle.file import read_bundle
from tests.support.command_line import OPTIONS, decided, line, pdp, session_file, written
from tests.support.payments import ARGUMENTS, BUNDLE, EXAMPLE, REMEDY, wire

LOOKUP = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
VALIDATE = {"tool": "validate_payment", "arguments": ARGUMENTS}

# Answers

GATE = {
    "code": "effects.gate_satisfied",
    "message": "Every clause of the effect class's gate is true.",
    "details": {"clauses": ["scope"], "effect_class": "unclassified"},
}
READ_GATE = {**GATE, "details": {"clauses": ["scope"], "effect_class": "read-internal"}}
EXCEEDED = {
    "code": "limits.exceeded",
    "message": "The amount is above what the subject may do without approval.",
    "details": {
        "approval": {
            "approvers": ["payments.approver"],
            "expires": "PT1H",
            "expires_seconds": 3600,
            "quorum": 1,
            "unless_within_limits": True,
        },
        "argument": "amount",
        "held": 25000,
        "limit": "wire.auto_approved",
        "value": 47500,
    },
    "remedy": REMEDY,
}
NOT_CLEAR = {
    "code": "sanctions.not_clear",
    "message": "The beneficiary's sanctions screening is missing or not clear.",
    "details": {"status": "not_screened"},
}


def risk(tier: str) -> dict[str, Any]:
    return {"code": "risk.acceptable", "message": "The tool's risk tier is known.", "details": {"risk_tier": tier}}


def golden(verdict: str | None, outcome: dict[str, Any], reasons: list[Any], **trace: Any) -> dict[str, Any]:
    """Return the complete expected JSON for a wire. The arguments `trace` replace fields of the member `trace`."""
    return {
        "outcome": outcome,
        "verdict": verdict,
        "reasons": reasons,
        "obligations": [],
        "trace": {
            "tool_name": "initiate_wire", "manifest_version": "2026.07.1", "in_manifest": True, "schema_valid": True,
            "risk_tier": "high", "pdp_action": "initiate_wire", "idempotency_key": "idm-4a2b",
            "idempotency_missing": False, "request_id": "ID", "tool_call_id": None, "step_name": None, **trace,
        },
        "decision_id": "ID" if verdict else None,
        "bundle_revision": "REVISION" if verdict else None,
    }  # fmt: skip


def accepted(proposal: dict[str, Any]) -> dict[str, Any]:
    return {"status": "accepted", "proposal": proposal}


def rejected(code: str, reason: str, **details: Any) -> dict[str, Any]:
    return {"status": "rejected", "rejection": {"code": code, "reason": reason, **details}}


def refused(verdict: str, reason: dict[str, Any]) -> dict[str, Any]:
    remedy = f" {reason['remedy']}" if "remedy" in reason else ""
    return rejected("POLICY_VIOLATION", f"{verdict}: {reason['code']}: {reason['message']}{remedy}")


def replaced(document: dict[str, Any], bundle: Path) -> dict[str, Any]:
    """Return the answer with placeholders for values that differ between two runs or releases."""
    trace = document["trace"]
    if document["verdict"] is not None:
        assert re.fullmatch("[0-9a-f]{32}", document["decision_id"])
        assert document["bundle_revision"] == read_bundle(bundle).revision
        document |= {"decision_id": "ID", "bundle_revision": "REVISION"}
    assert re.fullmatch("[0-9a-f]{32}", trace["request_id"])
    return {**document, "trace": {**trace, "request_id": "ID"}}


STORY = [
    pytest.param(
        LOOKUP, {}, 0,
        golden(
            "ALLOW", accepted(LOOKUP), [READ_GATE, risk("low")],
            tool_name="lookup_beneficiary", pdp_action="lookup_beneficiary", risk_tier="low",
        ),
        id="lookup",
    ),
    pytest.param(
        VALIDATE, {}, 0,
        golden(
            "ALLOW", accepted(VALIDATE), [READ_GATE, risk("medium")],
            tool_name="validate_payment", pdp_action="validate_payment", risk_tier="medium",
        ),
        id="validate",
    ),
    pytest.param(
        {"type": "tool_use", "id": "toolu_1", "name": "initiate_wire", "input": wire(amount=20000)["arguments"]}, {}, 0,
        golden("ALLOW", accepted(wire(amount=20000)), [GATE, risk("high")], tool_call_id="toolu_1"),
        id="in the form of a model's API",
    ),
    pytest.param(
        wire(amount=20000), {}, 0,
        golden("ALLOW", accepted(wire(amount=20000)), [GATE, risk("high")]),
        id="wire within the limit",
    ),
    pytest.param(
        wire(), {}, 3,
        golden("STEP_UP", refused("STEP_UP", EXCEEDED), [EXCEEDED]),
        id="wire above the limit",
    ),
    pytest.param(
        {"tool": "shell_exec", "arguments": {"command": "id"}}, {}, 4,
        golden(
            None, rejected("INVALID_TOOL_NAME", "'shell_exec' is not a tool of manifest 2026.07.1"), [],
            tool_name="shell_exec", in_manifest=False, schema_valid=None, risk_tier=None, pdp_action=None,
            idempotency_key=None, idempotency_missing=None,
        ),
        id="not in the manifest",
    ),
    pytest.param(
        wire(amount="47500"), {}, 4,
        golden(
            None,
            rejected(
                "INVALID_PAYLOAD", 'arguments.amount: "47500" is not of type "number"',
                details={"faults": [
                    {"argument": "amount", "rule": "type", "expected": ["number"], "found": "string"},
                ]},
            ),
            [],
            schema_valid=False, idempotency_key=None, idempotency_missing=None,
        ),
        id="amount is a string",
    ),
    pytest.param(
        wire(), {"idempotency_key": None}, 4,
        golden(
            None,
            rejected("INVALID_PAYLOAD", "initiate_wire needs an idempotency key, but the session has none"), [],
            idempotency_key=None, idempotency_missing=True,
        ),
        id="no idempotency key",
    ),
    pytest.param(
        wire(amount=20000), {"facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "not_screened"}}, 4,
        golden("DENY", refused("DENY", NOT_CLEAR), [NOT_CLEAR]),
        id="sanctions not clear",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("proposal", "changes", "code", "answer"), STORY)
def test_decide_prints_decisions_as_json(
    tmp_path: Path, proposal: dict[str, Any], changes: dict[str, Any], code: int, answer: dict[str, Any]
) -> None:
    done = decided(proposal, "--bundle", BUNDLE, "--json", s=session_file(tmp_path, **changes))
    assert (done.code, replaced(done.json, BUNDLE), done.err) == (code, answer, "")


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
@pytest.mark.parametrize(("proposal", "changes", "code", "answer"), [STORY[2], STORY[3], STORY[7]])
def test_decide_prints_the_same_answer_with_both_engines(
    tmp_path: Path, proposal: dict[str, Any], changes: dict[str, Any], code: int, answer: dict[str, Any]
) -> None:
    file = session_file(tmp_path, **changes)
    done = decided(proposal, "--bundle", BUNDLE, "--json", "--engine", "sidecar", s=file)
    assert (done.code, replaced(done.json, BUNDLE), done.err) == (code, answer, "")
    embedded = decided(proposal, "--bundle", BUNDLE, "--json", s=file)
    ids = re.compile('"(decision_id|request_id)": "[0-9a-f]{32}"')
    assert ids.sub("", done.out) == ids.sub("", embedded.out)


def test_repeated_decide_command_prints_identical_json_bytes() -> None:
    """The JSON is plain ASCII with keys in a fixed order."""
    done = decided({"tool": "b\u00f6se\x1b[2J", "arguments": {}}, "--json")
    answer = golden(
        None, rejected("INVALID_TOOL_NAME", "'b\u00f6se\\x1b[2J' is not a tool of manifest 2026.07.1"), [],
        tool_name="b\u00f6se\x1b[2J", in_manifest=False, schema_valid=None, risk_tier=None, pdp_action=None,
        idempotency_key=None, idempotency_missing=None,
    )  # fmt: skip
    assert done.code == 4
    assert re.sub("[0-9a-f]{32}", "ID", done.out) == json.dumps(answer, indent=2) + "\n"


TEXTS = [
    pytest.param(
        wire(),
        3,
        "STEP_UP  initiate_wire\n"
        "  limits.exceeded  The amount is above what the subject may do without approval.\n"
        '      {"approval":{"approvers":["payments.approver"],"expires":"PT1H","expires_seconds":3600,'
        '"quorum":1,"unless_within_limits":true},"argument":"amount","held":25000,"limit":"wire.auto_approved","value":47500}\n'
        f"      {REMEDY}\n"
        "  a person must approve first; this command opens no approval\n"
        "  manifest 2026.07.1, policy release N, request ID\n"
        "  more: pdp explain limits.exceeded\n",
        id="step up",
    ),
    pytest.param(
        wire(amount=20000),
        0,
        "ALLOW  initiate_wire\n"
        "  effects.gate_satisfied  Every clause of the effect class's gate is true.\n"
        '      {"clauses":["scope"],"effect_class":"unclassified"}\n'
        "  risk.acceptable  The tool's risk tier is known.\n"
        '      {"risk_tier":"high"}\n'
        "  manifest 2026.07.1, policy release N, request ID\n",
        id="allow",
    ),
    pytest.param(
        [],
        4,
        "REJECTED  (no tool)\n"
        "  INVALID_PAYLOAD  a proposal is an object with tool and arguments, not a list\n"
        "  rejected before the policy was asked\n"
        "  manifest 2026.07.1, request ID\n"
        "  more: pdp explain INVALID_PAYLOAD\n",
        id="rejected",
    ),
    pytest.param(
        {"tool": "a\x1b[2J\x9b\u202e\nALLOW  [bold]x[/bold]", "arguments": {}},
        4,
        "REJECTED  a\\x1b[2J\\x9b\\u202e\\nALLOW  [bold]x[/bold]\n"
        "  INVALID_TOOL_NAME  'a\\x1b[2J\\x9b\\u202e\\nALLOW  [bold]x[/bold]' is not a tool of manifest 2026.07.1\n"
        "  rejected before the policy was asked\n"
        "  manifest 2026.07.1, request ID\n"
        "  more: pdp explain INVALID_TOOL_NAME\n",
        id="a name that would steer the terminal and looks like markup",
    ),
]


@pytest.mark.parametrize(("proposal", "code", "text"), TEXTS)
def test_decide_prints_decisions_as_text(proposal: object, code: int, text: str) -> None:
    done = decided(proposal)
    shown = re.sub("request [0-9a-f]{32}", "request ID", re.sub("release [0-9]+", "release N", done.out))
    assert (done.code, shown, done.err) == (code, text, "")


def test_decide_accepts_data_and_audit_options(tmp_path: Path) -> None:
    record = tmp_path / "audit.jsonl"
    data = [written(tmp_path / "data.json", {"settings": {"a": 1}}), written(tmp_path / "more.json", {"directory": {}})]
    options = ["--audit", record, *(part for file in data for part in ("--data", file))]
    assert [decided(wire(amount=amount), *options).code for amount in (20000, 47500, "x")] == [0, 3, 4]
    lines = record.read_bytes().splitlines()
    assert verify_chain(lines) == 3
    recorded = [json.loads(event) for event in lines]
    assert [(event["type"], event["verdict"], event["rejection"]) for event in recorded] == [
        ("tool.initiate_wire.dispatch", "ALLOW", None),
        ("tool.initiate_wire.dispatch", "STEP_UP", "POLICY_VIOLATION"),
        ("tool.initiate_wire.dispatch", None, "INVALID_PAYLOAD"),
    ]


def test_each_input_file_can_be_standard_input(tmp_path: Path) -> None:
    proposal = written(tmp_path / "wire.json", wire())
    for option, file in OPTIONS.items():
        done = pdp(*line(proposal, **{option[1:]: "-"}), stdin=file.read_bytes())
        assert (done.code, done.out.splitlines()[0]) == (3, "STEP_UP  initiate_wire"), option


def test_standard_input_can_be_used_for_only_one_input_file() -> None:
    done = pdp(*line(m="-"), stdin=OPTIONS["-m"].read_bytes())
    assert done == (
        2,
        "",
        "error: standard input (-) is closed, empty, or was read already\n    hint: pipe a file in, use - once\n",
    )


def test_malformed_proposal_is_rejected() -> None:
    done = decided(json.dumps(wire()).encode("utf-16"), "--json")
    answer = done.json
    assert (done.code, done.err.splitlines()[0]) == (4, "<stdin>:1:1: not text: byte 0xff is not UTF-8")
    assert answer["outcome"] == rejected("INVALID_PAYLOAD", "value: not UTF-8 text")
    assert (answer["verdict"], answer["trace"]["tool_name"], answer["trace"]["in_manifest"]) == (None, None, None)


@pytest.mark.parametrize("command", ["decide", "explain"])
def test_invalid_json_of_proposal_is_shown_with_location(tmp_path: Path, command: str) -> None:
    file = written(tmp_path / "p.json", '{"tool": "initiate_wire",\n "arguments": {"amount": 1}}}\n')
    done = pdp(command, *line(file)[1:])
    assert (done.code, done.err) == (
        4,
        (
            f'{file}:2:29: not JSON: extra data\n     "arguments": {{"amount": 1}}}}}}\n    {" " * 28}^\n'
            "    hint: check commas, quotes and brackets\n"
        ),
    )


def test_too_large_proposal_is_rejected() -> None:
    done = decided(wire(reference="x" * 10 * 1024 * 1024), "--json")
    assert (done.code, done.json["outcome"]["rejection"]["code"]) == (4, "INVALID_PAYLOAD")
    assert "at most 1048576 are allowed" in done.json["outcome"]["rejection"]["reason"]
    assert len(done.out) < 2000


def test_claims_without_subject_are_denied(tmp_path: Path) -> None:
    message = "session: claims.sub is not text, but a decision needs a subject"
    done = decided(wire(), "--json", s=session_file(tmp_path, claims={"sub": 5}))
    assert (done.code, done.json["verdict"]) == (4, "DENY")
    assert done.json["reasons"] == [{"code": "decision.request_invalid", "message": message, "details": {}}]


# A governance file that names unknown actions


@pytest.mark.parametrize("command", ["decide", "explain"])
def test_governance_for_misspelt_action_is_rejected(tmp_path: Path, command: str) -> None:
    text = (EXAMPLE / "governance.yaml").read_text().replace("  initiate_wire:", "  initiate_wre:")
    file = written(tmp_path / "governance.yaml", text)
    at = text.splitlines().index("  initiate_wre:") + 1
    arguments = line("-", g=file)

    done = pdp(command, *arguments[1:], "--json", stdin=json.dumps(wire()).encode())

    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"{file}:{at}:3: action `initiate_wre` belongs to no tool of the manifest\n"
        "      initiate_wre:\n"
        "      ^\n"
        "    hint: did you mean `initiate_wire`?\n"
        f"error: 1 fault in {file}\n"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"claims": []}', "1:12: `claims` must be a mapping, not a list"),
        ('{"claim": {"sub": "x"}, "claims": {}}', "1:2: unknown key `claim`"),
        ('{"claims": {"sub": "x"}, "claims": {}}', "1:26: key `claims` is a duplicate, first on line 1"),
        ('{"claims": {"sub": "x", "limit": 1e400}}', "1:34: number `1e400` is beyond 2^53-1"),
    ],
)
def test_fault_in_session_is_shown_with_location(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path / "session.json", text)
    done = decided(wire(), s=file)
    first, source, caret, *_, last = done.err.splitlines()
    assert (done.code, done.out, first, last) == (2, "", f"{file}:{complaint}", f"error: 1 fault in {file}")
    column = int(complaint.split(":")[1])
    assert (source, caret) == (f"    {text}", " " * (column + 3) + "^")


def test_last_line_of_the_error_output_counts_the_faults_of_all_files(tmp_path: Path) -> None:
    manifest = written(tmp_path / "m.json", {"manifest_version": "1", "tools": [], "extra": 1})
    governance = written(tmp_path / "g.json", {"actions": {}, "extra": 1})
    done = decided(wire(), m=manifest, g=governance)
    assert (done.code, done.err.splitlines()[-1]) == (2, f"error: 2 faults in {governance}, {manifest}")


# Usage

MISUSE = [
    (["decide"], "Missing argument 'PROPOSAL'"),
    (["decide", "-"], "no manifest given"),
    ([*line(), "extra"], "Got unexpected extra argument"),
    ([*line(), "--nonsense"], "No such option: --nonsense"),
    ([*line(), "--engine", "wasm"], "'wasm' is not one of 'embedded', 'sidecar'"),
    ([*line(), "--engine"], "Option '--engine' requires an argument"),
    (["decid"], "No such command 'decid'"),
]


@pytest.mark.parametrize(("arguments", "complaint"), MISUSE, ids=[complaint for _, complaint in MISUSE])
def test_usage_error_is_explained(arguments: list[object], complaint: str) -> None:
    done = pdp(*arguments, stdin=b"{}")
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


BOTH = (
    "error: bundle and policies cannot be used together: a bundle contains its policies\n"
    "    hint: build them into the bundle: pdp bundle build --policies DIR -o FILE\n"
)
URL = ["--opa-url", "http://127.0.0.1:8181"]
NOT_FOR_EMBEDDED = (
    "error: the embedded engine does not use the URL of an OPA\n"
    "    hint: set the engine to sidecar, or remove the URL\n"
)
RUNS_ALREADY = (
    "error: a running engine decides with its own bundle and data\n"
    "    hint: remove bundle, policies and data, or remove the engine or its URL\n"
)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--bundle", BUNDLE, "--policies", EXAMPLE / "policies"], BOTH),
        (URL, NOT_FOR_EMBEDDED),
        *((["--engine", "sidecar", *URL, option, EXAMPLE], RUNS_ALREADY) for option in ("--data", "--policies")),
        (["--engine", "sidecar", *URL, "--bundle", BUNDLE], RUNS_ALREADY),
    ],
)
def test_conflicting_options_are_rejected(options: list[object], complaint: str) -> None:
    assert decided(wire(), *options) == (2, "", complaint)
