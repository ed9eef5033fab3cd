"""`pdp demo` prints the same payments story with both engines."""

import json
import re
import socket
from pathlib import Path

import pytest

from pdp.audit.verify import verify_chain
from tests.support.command_line import Done, pdp

WIDE = """\
A payment agent proposes 8 tool calls; the ENGINE engine decides.

it wants to                   verdict   because                                  executed
look the payee up             ALLOW     effects.gate_satisfied, risk.acceptable  yes
validate the payment          ALLOW     effects.gate_satisfied, risk.acceptable  yes
wire 20,000 (limit 25,000)    ALLOW     effects.gate_satisfied, risk.acceptable  yes
wire 47,500 (limit 25,000)    STEP_UP   limits.exceeded                          no
run a shell                   REJECTED  INVALID_TOOL_NAME                        no
wire an amount given as text  REJECTED  INVALID_PAYLOAD                          no
wire without idempotency key  REJECTED  INVALID_PAYLOAD                          no
wire to a payee not screened  DENY      sanctions.not_clear                      no

limits.exceeded  The amount is above what the subject may do without approval.
sanctions.not_clear  The beneficiary's sanctions screening is missing or not clear.

Payment hub (a stand-in): called once, 20,000 to bene-acme-441
Audit: 11 events (8 decisions, 3 results), hash chain intact
       RECORD
"""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for the temporary files of `pdp demo`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def told(done: Done, folder: Path) -> str:
    """Verify the audit file. Return the output with RECORD instead of the file's path and without trailing blanks."""
    (record,) = folder.glob("pdp-demo-*/audit.jsonl")
    assert verify_chain(record.read_bytes().splitlines()) > 0
    return re.sub(" +$", "", done.out, flags=re.MULTILINE).replace(str(record), "RECORD")


def test_demo_prints_the_expected_output_with_the_embedded_engine(demo: Path) -> None:
    done = pdp("demo")
    assert (done.code, told(done, demo), done.err) == (0, WIDE.replace("ENGINE", "embedded"), "")


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_demo_prints_the_expected_output_with_opa(demo: Path) -> None:
    done = pdp("demo", "--engine", "sidecar")
    assert (done.code, told(done, demo), done.err) == (0, WIDE.replace("ENGINE", "sidecar"), "")


def test_demo_audit_file_has_all_decisions_and_results(demo: Path) -> None:
    pdp("demo")
    (record,) = demo.glob("pdp-demo-*/audit.jsonl")
    events = [json.loads(event) for event in record.read_bytes().splitlines()]
    assert [(event["type"], event["verdict"] or event["rejection"] or event["outcome"]) for event in events] == [
        ("tool.lookup_beneficiary.dispatch", "ALLOW"),
        ("tool.lookup_beneficiary.result", "succeeded"),
        ("tool.validate_payment.dispatch", "ALLOW"),
        ("tool.validate_payment.result", "succeeded"),
        ("tool.initiate_wire.dispatch", "ALLOW"),
        ("tool.initiate_wire.result", "succeeded"),
        ("tool.initiate_wire.dispatch", "STEP_UP"),
        ("tool.unknown.dispatch", "INVALID_TOOL_NAME"),
        ("tool.initiate_wire.dispatch", "INVALID_PAYLOAD"),
        ("tool.initiate_wire.dispatch", "INVALID_PAYLOAD"),
        ("tool.initiate_wire.dispatch", "DENY"),
    ]


def test_demo_exits_with_1_if_a_verdict_is_unexpected(demo: Path) -> None:
    # Bind a port without listening. Connections to the port are refused, and no other process can use the port.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        done = pdp("demo", "--engine", "sidecar", "--opa-url", f"http://127.0.0.1:{closed.getsockname()[1]}")
    story = told(done, demo)
    assert done.code == 1
    assert "Payment hub (a stand-in): called not at all\nAudit: 8 events (8 decisions, 0 results)" in story
    assert story.split("RECORD\n")[1].splitlines() == [
        "not as expected: look the payee up: DENY, not ALLOW",
        "not as expected: validate the payment: DENY, not ALLOW",
        "not as expected: wire 20,000 (limit 25,000): DENY, not ALLOW",
        "not as expected: wire 47,500 (limit 25,000): DENY, not STEP_UP",
    ]


@pytest.mark.usefixtures("demo")
def test_demo_rejects_opa_url_without_sidecar_engine() -> None:
    done = pdp("demo", "--opa-url", "http://127.0.0.1:8181")
    assert (done.code, done.out) == (2, "")
