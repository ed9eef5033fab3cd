"""Lasting grants: which calls they let through, how often, and until when, in each kind of store."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pdp import ApprovalRefusedError, Approvals, EmbeddedEngine, Evaluation, MemoryAudit, Pep, Verdict
from pdp.approvals.lasting import GrantRefusedError
from pdp.audit.chain import AuditEvent
from pdp.errors import AuditError, UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.stores.approvals import ApprovalStore
from pdp.stores.grants import GrantState
from pdp.stores.memory import MemoryApprovals, MemoryGrants
from tests.support import ROOT, at_once

FILES = [ROOT / "tests/scenarios" / name for name in ("grants.yaml", "grants-governance.yaml")]
CLERK = {"sub": "clerk", "iss": "https://id", "emts": {"desk.write": True}, "limits": {"fees": 50}}
LEAD = {"sub": "lead", "iss": "https://id", "roles": ["desk.lead"]}
OTHER_LEAD = {**LEAD, "sub": "lead-2"}
SESSION = {"claims": CLERK, "run_id": "run-1", "purpose": "desk"}
GOVERNED = "actions: {send_notice: {approval: {approvers: [desk.lead], lasting: {reaches: [run], free: [/text]}}}}"


class Desk:
    """An enforcement point for the tools of the scenarios about grants. `sent` counts the tool's runs."""

    def __init__(self, store: ApprovalStore, engine: EmbeddedEngine, manifest: EffectiveManifest) -> None:
        self.approvals, self.audit, self.sent = Approvals(store), MemoryAudit(), list[str]()
        self.pep = Pep(manifest, engine, approvals=self.approvals, audit=self.audit, tools={"send_notice": self._send})

    def _send(self, recipient: str, text: str, topic: str = "") -> str:
        self.sent.append(text)
        return recipient

    def call(self, text: str, to: str = "bob", **session: Any) -> Evaluation:
        return self.pep.call(
            {"tool": "send_notice", "arguments": {"recipient": to, "text": text}}, {**SESSION, **session}
        )

    def granted(self, reach: str = "run", **session: Any) -> str:
        """Let a person grant a call beyond itself, and return the id of the grant."""
        approval = self.call("first", **session).approval
        assert approval is not None
        return self.approvals.grant(approval.id, LEAD, reach=reach).id

    def events(self) -> Counter[str]:
        return Counter(event["type"] for event in self.audit.events if event["type"].startswith("grant."))


@pytest.fixture(scope="module")
def manifest() -> EffectiveManifest:
    return load_effective(*FILES)


@pytest.fixture(scope="module")
def engine(manifest: EffectiveManifest) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as engine:
        yield engine


@pytest.fixture
def desk(approvals: ApprovalStore, engine: EmbeddedEngine, manifest: EffectiveManifest) -> Desk:
    return Desk(approvals, engine, manifest)


def test_call_under_a_grant_is_audited_with_its_id(desk: Desk) -> None:
    grant_id = desk.granted()
    called = desk.call("second")

    assert (called.verdict, called.executed, called.grant_id) == (Verdict.ALLOW, True, grant_id)
    steps = [(event["type"], event["grant_id"]) for event in desk.audit.events if event.get("grant_id")]
    assert steps == [
        ("grant.created", grant_id),
        ("tool.send_notice.dispatch", grant_id),
        ("grant.used", grant_id),
        ("tool.send_notice.result", grant_id),
    ]
    grant = desk.approvals.lasting.get(grant_id)
    assert (grant.uses_left, grant.about, grant.codes) == (1, {"recipient": "bob"}, ("approvals.required",))


def test_concurrent_calls_take_exactly_the_uses_of_a_grant(
    approvals: ApprovalStore, engine: EmbeddedEngine, manifest: EffectiveManifest
) -> None:
    desks = [Desk(approvals, engine, manifest) for _ in range(2)]
    desks[0].granted()
    calls = [partial(desks[number % 2].call, f"text {number}") for number in range(8)]
    verdicts = Counter(evaluation.verdict for evaluation in at_once(calls))

    assert verdicts == {Verdict.ALLOW: 2, Verdict.STEP_UP: 6}
    assert sum(len(desk.sent) for desk in desks) == 2
    assert desks[0].approvals.lasting.list()[0].state is GrantState.USED_UP
    used = Counter(
        event.get("outcome") for desk in desks for event in desk.audit.events if event["type"] == "grant.used"
    )
    assert used[None] - used["failed"] == 2


def test_revoked_grant_ends_at_once_for_every_enforcement_point(
    approvals: ApprovalStore, engine: EmbeddedEngine, manifest: EffectiveManifest
) -> None:
    desk, other = (Desk(approvals, engine, manifest) for _ in range(2))
    grant_id = desk.granted("until")
    assert other.call("second", run_id="run-2").executed

    with pytest.raises(GrantRefusedError, match="may revoke"):
        desk.approvals.lasting.revoke(grant_id, {"sub": "somebody", "iss": "https://id", "roles": ["clerk"]})
    revoked = desk.approvals.lasting.revoke(grant_id, OTHER_LEAD)
    assert (revoked.state, revoked.closed_by and revoked.closed_by.sub) == (GrantState.REVOKED, "lead-2")
    assert other.call("third", run_id="run-2").verdict is Verdict.STEP_UP
    assert desk.events() == {"grant.created": 1, "grant.revoked": 1}
    for wrong in (grant_id, "unknown"):
        with pytest.raises(GrantRefusedError):
            desk.approvals.lasting.revoke(wrong, LEAD)


def test_grant_for_a_run_ends_with_the_run(desk: Desk) -> None:
    desk.granted()
    desk.pep.end_run("run-1", {**SESSION, "claims": {**CLERK, "sub": "other"}})
    assert desk.call("second").executed
    desk.pep.end_run("run-1", SESSION)

    assert desk.call("third").verdict is Verdict.STEP_UP
    assert desk.events()["grant.expired"] == 1


@pytest.mark.parametrize(
    "session",
    [
        {"run_id": "run-2"},
        {"claims": {**CLERK, "sub": "Clerk"}},
        {"claims": {**CLERK, "iss": "https://other"}},
        {"claims": {**CLERK, "act": {"sub": "agent:1", "scopes": ["desk.write"]}}},
        {"agent": "agent:1"},
        {"purpose": "other"},
    ],
    ids=["another run", "another subject", "another tenant", "another actor", "another agent", "another purpose"],
)
def test_grant_covers_no_call_of_other_people_runs_and_purposes(desk: Desk, session: dict[str, Any]) -> None:
    desk.granted()

    assert desk.call("second", **session).verdict is Verdict.STEP_UP
    assert desk.call("second").executed


@pytest.mark.parametrize("change", ["description: Sends a notice", "maxLength: 400"])
def test_grant_ends_when_the_entry_of_its_tool_changes(
    change: str, approvals: ApprovalStore, engine: EmbeddedEngine, manifest: EffectiveManifest, tmp_path: Path
) -> None:
    Desk(approvals, engine, manifest).granted()
    file = tmp_path / "manifest.yaml"
    file.write_text(FILES[0].read_text().replace(change, change.replace("400", "399").replace("Sends", "Gives")))
    changed = load_effective(file, FILES[1])
    with EmbeddedEngine.baseline(manifests={changed.digest: changed.document}) as own:
        assert Desk(approvals, own, changed).call("second").verdict is Verdict.STEP_UP


def test_quorum_gives_the_shortest_reach_that_a_person_chose(approvals: ApprovalStore, tmp_path: Path) -> None:
    file = tmp_path / "governance.yaml"
    file.write_text(FILES[1].read_text().replace("send_notice: {approval: {", "send_notice: {approval: {quorum: 2, "))
    manifest = load_effective(FILES[0], file)
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as engine:
        desk = Desk(approvals, engine, manifest)
        for reaches, lasting in ((("until", "run"), True), (("run", "once"), False)):
            approval = desk.call(str(reaches), to=reaches[0]).approval
            assert approval is not None
            for claims, reach in zip((LEAD, OTHER_LEAD), reaches, strict=True):
                desk.approvals.grant(approval.id, claims, reach=reach)
            assert desk.call("another", to=reaches[0]).executed is lasting
        assert [grant.reach for grant in desk.approvals.lasting.list()] == ["run"]


def test_unusable_reach_is_rejected_and_grants_nothing(desk: Desk) -> None:
    approval = desk.call("first").approval
    assert approval is not None
    with pytest.raises(UsageError, match="not a reach"):
        desk.approvals.grant(approval.id, LEAD, reach="ever")
    for end in ("2020-01-01T00:00:00Z", "9999-01-01T00:00:00Z"):
        with pytest.raises(ApprovalRefusedError, match="cannot reach that far"):
            desk.approvals.grant(approval.id, LEAD, reach="until", until=end)

    assert desk.approvals.get(approval.id).grants == ()
    assert desk.approvals.lasting.list() == []


def test_grant_and_its_approval_end_together(desk: Desk) -> None:
    closings: dict[str, Callable[[str], object]] = {
        "bob": lambda grant_id: desk.approvals.lasting.revoke(grant_id, LEAD),
        "eve": lambda grant_id: desk.approvals.deny(grant_id, OTHER_LEAD),
        "fay": lambda grant_id: desk.approvals.withdraw(grant_id, CLERK),
    }
    for to, close in closings.items():
        approval = desk.call("first", to).approval
        assert approval is not None
        close(desk.approvals.grant(approval.id, LEAD, reach="run").id)
        assert {desk.call(text, to).verdict for text in ("first", "second")} == {Verdict.STEP_UP}
    assert desk.events()["grant.revoked"] == len(closings)


def test_use_while_a_run_ends_does_not_keep_its_grant(desk: Desk) -> None:
    nobody = {**CLERK, "iss": ""}

    class Late(MemoryAudit):
        def append(self, event: AuditEvent) -> None:
            super().append(event)
            if event["type"] == "grant.expired" and not desk.sent:
                assert desk.call("second", claims=nobody).executed

    desk.granted(claims=nobody)
    desk.approvals.audit = Late()
    desk.pep.end_run("run-1", {**SESSION, "claims": nobody})

    assert desk.call("third", claims=nobody).verdict is Verdict.STEP_UP


def test_full_store_in_memory_drops_the_oldest_grants(
    engine: EmbeddedEngine, manifest: EffectiveManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(MemoryApprovals(), engine, manifest)
    grant, store = desk.approvals.lasting.get(desk.granted()), MemoryGrants()
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 2)
    for name, scope in (("1", "a"), ("2", "b"), ("3", "b"), ("4", "b")):
        store.add(replace(grant, id=name, scope=scope))

    assert [[each.id for each in store.list(scope=scope)] for scope in (None, "a", "b")] == [["3", "4"], [], ["3", "4"]]


LABELLED = """
manifest_version: 2026.1.0
tools:
  - {name: read_page, effect_class: read-external, risk_tier: low, scopes: [desk.write], schema: &none {type: object}}
  - name: read_file
    effect_class: read-internal
    risk_tier: low
    scopes: [desk.write]
    result: {markings: [medical]}
    schema: *none
  - name: read_diary
    effect_class: read-internal
    risk_tier: low
    scopes: [desk.write]
    result: {markings: [diary]}
    schema: *none
  - name: send_notice
    effect_class: commit-low
    risk_tier: high
    scopes: [desk.write]
    idempotency: {required: true, key: derive(args)}
    context: {region: $session.facts.text, length: $size(arguments.text)}
    roles: {recipient: destination, text: body}
    schema:
      type: object
      required: [recipient, text]
      properties: {recipient: {type: string, maxLength: 40}, text: {type: string, maxLength: 400}}
"""


def test_grant_covers_no_other_links_marked_data_and_facts(tmp_path: Path) -> None:
    for name, text in {"manifest": LABELLED, "governance": GOVERNED}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    manifest = load_effective(tmp_path / "manifest.yaml", tmp_path / "governance.yaml")
    tools: dict[str, Callable[..., Any]] = {
        "read_page": lambda: "http://one.example/a http://two.example/b eve@one.example",
        "read_file": lambda: "asthma",
        "read_diary": lambda: "Monday",
        "send_notice": lambda recipient, text: len(recipient + text),
    }
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as engine:
        approvals = Approvals()
        pep = Pep(manifest, engine, approvals=approvals, tools=tools)

        def call(tool: str, text: str | None = None, **session: Any) -> Evaluation:
            arguments = {} if text is None else {"recipient": "eve@one.example", "text": text}
            return pep.call({"tool": tool, "arguments": arguments}, {**SESSION, "facts": {"text": "north"}, **session})

        call("read_page")
        asked = call("send_notice", "see http://one.example/a")
        assert {"flow.link_untrusted", "approvals.required"} < {*asked.codes}
        assert asked.approval is not None
        approvals.grant(asked.approval.id, LEAD, reach="run")
        assert call("send_notice", "no link").executed
        assert call("send_notice", "see http://two.example/b").verdict is Verdict.STEP_UP
        assert call("send_notice", "without link", facts={"text": "south"}).verdict is Verdict.STEP_UP

        call("read_file")
        asked = call("send_notice", "asthma")
        assert "flow.egress" in asked.codes
        assert asked.approval is not None
        approvals.grant(asked.approval.id, LEAD, reach="run")
        assert call("send_notice", "still asthma").executed
        call("read_diary")
        assert call("send_notice", "Monday").verdict is Verdict.STEP_UP


def test_use_that_cannot_be_recorded_denies_the_call(desk: Desk) -> None:
    class Failing(MemoryAudit):
        def append(self, event: AuditEvent) -> None:
            if event["type"] == "grant.used":
                raise AuditError("full")
            super().append(event)

    grant_id = desk.granted()
    desk.approvals.audit = Failing()
    called = desk.call("second")

    assert (called.verdict, called.codes) == (Verdict.DENY, ("audit.write_failed",))
    assert (desk.sent, desk.approvals.lasting.get(grant_id).uses_left) == ([], 2)
