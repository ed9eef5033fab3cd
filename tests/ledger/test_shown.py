"""Labels as people see them: in audit events, in explanations of reasons, and at several enforcement points."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pdp import EmbeddedEngine, FileAudit, Pep
from pdp.manifest.load import load_effective
from tests.ledger import assistant
from tests.ledger.assistant import EXAMPLE, MAIL, READ, invite, session
from tests.support import desk
from tests.support.command_line import pdp

STRANGER, TOLD = "y@other.example", "was read in the result of read_mail (call c-17), and you did not name it."
LABELS = {"markings": [], "noted": [], "tainted": True, "untrusted": ["read_mail"]}
TITLE = {"path": "/title", "role": "body", "sources": ["model"]}


def read_mail(mail_id: str) -> Any:
    return {**MAIL, "id": mail_id}


def create_event(**_: Any) -> Any:
    return {"id": "e-9"}


TOOLS: dict[str, Callable[..., Any]] = {"read_mail": read_mail, "create_event": create_event}


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with desk.engine(assistant.effective()) as engine:
        yield engine


@pytest.fixture
def pep(engine: EmbeddedEngine) -> Pep:
    return Pep(assistant.effective(), engine, tools=TOOLS)


def events(pep: Pep, kind: str) -> list[Any]:
    return [event for event in desk.events(pep) if event["type"] == f"tool.{kind}"]


def test_audit_event_contains_labels_but_no_values(pep: Pep) -> None:
    pep.call(READ, session(), tool_call_id="c-17")
    pep.call(invite(STRANGER), session())

    (read,), (asked,) = events(pep, "read_mail.dispatch"), events(pep, "create_event.dispatch")
    assert read["flow"] == {"arguments": [], "markings": [], "noted": [], "tainted": False, "untrusted": []}
    invited = {"path": "/participants/0", "role": "destination", "sources": ["untrusted"]}
    assert asked["flow"] == {"arguments": [invited, TITLE], **LABELS}
    assert asked["codes"] == ["flow.target_untrusted"]
    assert [event["flow"] for event in events(pep, "read_mail.result")] == [None]
    assert STRANGER not in str(desk.events(pep))


def test_audit_event_lists_noted_codes_of_an_allowed_call(tmp_path: Path, engine: EmbeddedEngine) -> None:
    rules = (EXAMPLE / "governance.yaml").read_text().replace("profile: balanced", "profile: watch")
    (tmp_path / "governance.yaml").write_text(rules)
    manifest = load_effective(EXAMPLE / "manifest.yaml", tmp_path / "governance.yaml")
    with desk.engine(manifest) as watching:
        pep = Pep(manifest, watching, tools=TOOLS)
        pep.call(READ, session())
        evaluation = pep.call(invite(STRANGER), session())

    (event,) = events(pep, "create_event.dispatch")
    assert (evaluation.allowed, evaluation.executed) == (True, True)
    assert event["flow"]["noted"] == ["flow.not_anchored", "flow.target_untrusted"]


def test_reason_explains_the_origin_of_a_value(pep: Pep) -> None:
    pep.call(READ, session(), tool_call_id="c-17")

    evaluation = pep.call(invite(STRANGER, title="with y"), session())

    (reason,) = evaluation.reasons
    said = f"The value of `participants/0` {TOLD}"
    assert reason.explanation == said
    assert reason.text == f"{reason.code}: {reason.message} {said} {reason.remedy}"
    assert evaluation.as_json()["reasons"] == [
        {"code": reason.code, "message": reason.message, "details": dict(reason.details), "remedy": reason.remedy,
         "explanation": said}
    ]  # fmt: skip
    assert said in evaluation.answer.text


def test_enforcement_points_share_the_labels_of_a_run(pep: Pep) -> None:
    other = pep.with_changes(tools=TOOLS)

    pep.call(READ, session())

    flow = other.call(invite(STRANGER), session()).flow
    assert flow is not None
    assert flow["untrusted"] == ["read_mail"]


def test_later_read_does_not_change_the_call_digest(pep: Pep) -> None:
    pep.call(READ, session())
    first = pep.decide(invite("z@new.example"), session())
    pep.call({"tool": "read_mail", "arguments": {"mail_id": "m-2"}}, session(request_id="req-2"))

    again = pep.decide(invite("z@new.example"), session())

    digests = {evaluation.request["context"]["call_digest"] for evaluation in (first, again) if evaluation.request}
    assert len(digests) == 1


def test_audit_show_names_the_tool_that_tainted_a_run(tmp_path: Path, engine: EmbeddedEngine) -> None:
    stream = tmp_path / "audit.jsonl"
    with closing(FileAudit(stream)) as log:
        pep = Pep(assistant.effective(), engine, tools=TOOLS, audit=log)
        pep.call(READ, session())
        pep.call(invite(STRANGER), session())

    shown = [line.split("  ") for line in pdp("audit", "show", stream).out.splitlines()]

    assert [[part for part in line if part.startswith("tainted")] for line in shown] == [
        [], [], ["tainted by read_mail"]
    ]  # fmt: skip
