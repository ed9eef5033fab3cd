"""A manifest with tools of every effect class and an engine with the baseline policies, for tests of `Pep`."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdp import (
    Approval,
    Approvals,
    Database,
    EmbeddedEngine,
    Evaluation,
    MemoryAudit,
    Pep,
    Session,
    SqlActions,
    SqlApprovals,
    SqlIdempotency,
    Verdict,
)
from pdp.audit.chain import AuditEvent
from pdp.audit.verify import verify_chain
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.proposal import Failure

MANIFEST = """
manifest_version: 2026.1.0
$defs:
  entry:
    type: object
    required: [account, amount]
    properties: {account: {type: string, maxLength: 20}, amount: {type: number}}
tools:
  - {name: read_entry, version: 1.0.0, effect_class: read-internal, risk_tier: low, scopes: [desk],
     idempotency: {required: true, key: derive(args)}, schema: {$ref: "#/$defs/entry"}}
  - {name: keep_draft, version: 1.0.0, effect_class: stage, risk_tier: low, scopes: [desk],
     schema: {$ref: "#/$defs/entry"}, sensitive: [account], timeout: PT30S}
  - {name: post_note, version: 1.0.0, effect_class: commit-low, risk_tier: low, scopes: [desk],
     compensation: drop_note, schema: {$ref: "#/$defs/entry"}}
  - {name: drop_note, version: 1.0.0, effect_class: commit-low, risk_tier: low, scopes: [desk],
     compensation: post_note, schema: {$ref: "#/$defs/entry"}}
  - {name: book_entry, version: 1.0.0, effect_class: commit-low, risk_tier: low, scopes: [desk],
     compensation: unbook_entry, idempotency: {required: true}, schema: {$ref: "#/$defs/entry"}}
  - {name: unbook_entry, version: 1.0.0, effect_class: commit-high, risk_tier: medium, scopes: [desk],
     compensation: book_entry, approval: {approvers: [chief]}, schema: {$ref: "#/$defs/entry"}}
  - {name: send_letter, version: 1.0.0, effect_class: commit-high, risk_tier: high, scopes: [desk],
     compensation: recall_letter, approval: {approvers: [chief]}, idempotency: {required: true},
     schema: {$ref: "#/$defs/entry"}}
  - {name: recall_letter, version: 1.0.0, effect_class: commit-high, risk_tier: medium, scopes: [desk],
     compensation: send_letter, approval: {approvers: [chief]}, schema: {$ref: "#/$defs/entry"}}
  - {name: pay_small, version: 1.0.0, effect_class: commit-high, risk_tier: medium, scopes: [desk],
     compensation: drop_note, limits: [{limit: small, argument: amount}], approval: {approvers: [chief],
     unless_within_limits: true}, schema: {$ref: "#/$defs/entry"}}
  - name: stage_effect
    version: 1.0.0
    pattern: action-staging
    risk_tier: low
    scopes: [desk]
    commits: [send_letter, pay_small]
    idempotency: {required: true, key: derive(args)}
    schema:
      type: object
      required: [action]
      properties:
        action:
          type: object
          required: [kind, targetSor, payload]
          properties:
            kind: {enum: [send_letter, pay_small]}
            targetSor: {type: string, maxLength: 40}
            payload: {$ref: "#/$defs/entry"}
        idempotencyKey: {type: string, maxLength: 60}
    result_schema: {$ref: Action}
"""
ENTRY = {"account": "cash", "amount": 5}
CHIEF = {"sub": "chief-1", "roles": ["chief"]}
NOW, SOON = "2026-07-01T10:00:00Z", "2026-07-01T10:05:00Z"


def effective(folder: Path) -> EffectiveManifest:
    """Load the manifest through a file in `folder`, and return the effective manifest."""
    file = folder / "manifest.yaml"
    file.write_text(MANIFEST)
    return load_effective(file, None)


def engine(manifest: EffectiveManifest) -> EmbeddedEngine:
    return EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document})


def session(**changes: Any) -> Session:
    claims = {"sub": "ann", "emts": {"desk": True}, "limits": {"small": 100}}
    whole = Session(claims=claims, idempotency_key="key-1", run_id="run-1", request_id="req-1", time=NOW)
    return whole.with_changes(**changes)


def propose(tool: str, **changes: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": {**ENTRY, **changes}}


def staging(kind: str, **changes: Any) -> dict[str, Any]:
    action = {"kind": kind, "targetSor": "ledger", "payload": {**ENTRY, **changes}}
    return {"tool": "stage_effect", "arguments": {"action": action}}


class Desk:
    """The functions of the tools. `runs` records the tool and the amount of each call."""

    names = (
        "read_entry", "keep_draft", "post_note", "drop_note", "book_entry", "unbook_entry", "send_letter",
        "recall_letter", "pay_small",
    )  # fmt: skip

    def __init__(self, fails: BaseException | None = None) -> None:
        self.runs: list[tuple[str, Any]] = []
        self.fails = fails
        self._lock = threading.Lock()

    def tools(self) -> dict[str, Callable[..., Any]]:
        return {name: self._tool(name) for name in self.names}

    def _tool(self, name: str) -> Callable[..., Any]:
        def run(account: str, amount: float) -> dict[str, Any]:
            with self._lock:
                self.runs.append((name, amount))
                number = len(self.runs)
            if self.fails is not None:
                raise self.fails
            return {"number": number, "account": account}

        return run


class FailingAudit(MemoryAudit):
    """An audit log that accepts `takes` events and then raises `failure`."""

    def __init__(self, failure: Exception, takes: int = 1000) -> None:
        super().__init__()
        self.takes = takes
        self.failure = failure

    def append(self, event: AuditEvent) -> None:
        if self.takes == 0:
            raise self.failure
        self.takes -= 1
        super().append(event)


def events(pep: Pep) -> list[dict[str, Any]]:
    """Check the hash chain of an audit log in memory, and return its events."""
    assert isinstance(pep.audit, MemoryAudit)
    assert verify_chain(list(pep.audit._lines)) == len(pep.audit.events)
    return pep.audit.events


def recorded(pep: Pep) -> list[tuple[Any, ...]]:
    """Return each event of the audit log as a pair of its type and its verdict or outcome."""
    return [(event["type"], event["verdict"] or event["outcome"]) for event in events(pep)]


def waiting(pep: Pep, proposal: Any, session: Any, **ids: Any) -> Evaluation:
    return pep.call(proposal, session, **ids)


def asynchronously(pep: Pep, proposal: Any, session: Any, **ids: Any) -> Evaluation:
    return asyncio.run(pep.acall(proposal, session, **ids))


Call = Callable[..., Evaluation]
both_ways = pytest.mark.parametrize("call", [waiting, asynchronously])


def in_database(pep: Pep, works: Desk, store: Database, log: MemoryAudit | None = None) -> Pep:
    """Return a copy of the enforcement point. The keys, approvals and actions of the copy are in one database."""
    return pep.with_changes(
        audit=MemoryAudit() if log is None else log, tools=works.tools(), keys=SqlIdempotency(store),
        approvals=Approvals(SqlApprovals(store)), actions=SqlActions(store),
    )  # fmt: skip


def failure(evaluation: Evaluation) -> Failure:
    assert evaluation.outcome.failure is not None
    return evaluation.outcome.failure


def rules(pep: Pep) -> Approvals:
    assert pep.approvals is not None
    return pep.approvals


def asked(evaluation: Evaluation) -> Approval:
    """Return the approval for which the evaluated call waits."""
    assert evaluation.verdict is Verdict.STEP_UP
    assert evaluation.approval is not None
    return evaluation.approval


def granted(pep: Pep, proposal: Any, **changes: Any) -> Approval:
    """Make a call that needs approval, grant the approval, and return the approval."""
    return rules(pep).grant(asked(pep.call(proposal, session(**changes))).id, CHIEF, SOON)
