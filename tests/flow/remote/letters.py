"""A remote tool whose call reserves everything that a call can reserve: a key, a budget, an approval and an action."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pdp import Approvals, Pep, Session
from pdp.flow.drive import drive
from pdp.flow.remote import calls
from pdp.manifest.load import load_effective
from pdp.pep import _received
from pdp.proposal import Execution
from pdp.stores.remote_calls import CallName
from pdp.stores.url import OpenStores
from tests.support.desk import rules
from tests.support.scripted import Scripted, answer, duty

MANIFEST = """
manifest_version: 2026.1.0
$defs:
  letter:
    type: object
    required: [to, pages]
    properties: {to: {type: string, maxLength: 20}, pages: {type: number}}
tools:
  - {name: send_letter, version: 1.0.0, effect_class: commit-high, risk_tier: high, scopes: [desk],
     compensation: recall_letter, approval: {approvers: [chief]}, idempotency: {required: true}, timeout: PT30S,
     sensitive: [to], limits: [{limit: pages, argument: pages, per: subject, window: P1D}],
     schema: {$ref: "#/$defs/letter"}, result_schema: {type: object, required: [number], properties: {number:
     {type: integer}}}}
  - {name: recall_letter, version: 1.0.0, effect_class: commit-high, risk_tier: medium, scopes: [desk],
     compensation: send_letter, approval: {approvers: [chief]}, schema: {$ref: "#/$defs/letter"}}
  - {name: read_letter, version: 1.0.0, effect_class: read-internal, risk_tier: low, scopes: [desk],
     schema: {$ref: "#/$defs/letter"}}
  - {name: find_record, version: 1.0.0, pattern: lookup, risk_tier: low,
     result_schema: {type: object, properties: {record: {type: string}}}, schema: {type: object, required:
     [identifier, source], properties: {identifier: {type: string, maxLength: 9}, source: {$ref: SoRRef}}}}
  - {name: stage_letter, version: 1.0.0, pattern: action-staging, risk_tier: low, commits: [send_letter],
     idempotency: {required: true, key: derive(args)}, result_schema: {$ref: Action}, schema: {type: object,
     required: [action], properties: {action: {type: object, required: [kind, targetSor, payload], properties:
     {kind: {const: send_letter}, targetSor: {type: string, maxLength: 9}, payload: {$ref: "#/$defs/letter"}}},
     idempotencyKey: {type: string, maxLength: 60}}}}
"""
LABELLED = (
    MANIFEST
    + """
  - {name: read_mail, effect_class: read-internal, risk_tier: low, scopes: [desk], schema: {$ref: "#/$defs/letter"},
     result_schema: {type: object, properties: {number: {type: integer}, text: {type: string}}},
     result: {trusted: [/number]}}
"""
)
CHIEF = {"sub": "chief-1", "roles": ["chief"]}
SENT = Execution({"number": 7})
PAGES = 5

Script = Callable[[dict[str, Any]], dict[str, Any]]


def respond(request: dict[str, Any]) -> dict[str, Any]:
    """Return STEP_UP for a letter without an approval, and otherwise ALLOW. The letter reserves its number of pages."""
    context = request["context"]
    if request["action"]["name"] == "send_letter" and context["approval"] is None:
        return answer("STEP_UP", code="approvals.required")
    return answer(
        "ALLOW",
        *(
            duty("reserve", limit=entry["limit"], amount=entry["amount"], cap=1000, window=None)
            for entry in context.get("spent", ())
        ),
    )


def manifest_in(folder: Path, text: str = MANIFEST) -> Path:
    file = folder / "letters.yaml"
    file.write_text(text)
    return file


def opened(manifest: Path, url: str, owned: ExitStack, script: Script = respond, **options: Any) -> Pep:
    """Return an enforcement point without tool functions that uses the database at `url`."""
    stores = OpenStores(url)
    owned.callback(stores.close)
    audit = stores.open_audit(None)
    owned.callback(audit.close)
    return Pep(
        load_effective(manifest), Scripted(script), audit=audit, approvals=Approvals(stores.approvals),
        keys=stores.keys, actions=stores.actions, ledger=stores.ledger, budgets=stores.budgets,
        remote_calls=stores.remote_calls, **options,
    )  # fmt: skip


def begin(pep: Pep, name: CallName, proposal: Any, session: Session) -> dict[str, Any]:
    """Begin a call as `Pep.abegin` does, but synchronously."""
    parts = pep._parts
    return drive(calls.begin(name, _received(parts, to_run=True), proposal, session, parts), pep.engine)


def finish(pep: Pep, name: CallName, execution: Execution) -> dict[str, Any]:
    """Finish a call as `Pep.afinish` does, but synchronously."""
    return drive(calls.finish(name, execution, pep._parts), pep.engine)


def session(key: str = "key-1") -> Session:
    claims = {"sub": "ann", "emts": {"desk": True}}
    return Session(claims=claims, idempotency_key=key, run_id="run-1", request_id=f"req of {key}")


def letter(tool: str = "send_letter", **changes: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"to": "Bob Archer", "pages": PAGES, **changes}}


def call(name: str, owner: str = "token-1") -> CallName:
    return CallName(name, owner, f"sha256:{name}")


def approved(pep: Pep, name: str, key: str = "key-1") -> str:
    """Propose a letter, grant its approval, and return the approval's id."""
    asked = begin(pep, call(name), letter(), session(key))
    assert (asked["verdict"], asked["begun"], asked["approval"]["state"]) == ("STEP_UP", False, "pending")
    return rules(pep).grant(asked["approval"]["id"], CHIEF).id
