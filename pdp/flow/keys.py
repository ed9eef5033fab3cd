"""Which idempotency key a call has, and whose it is.

Source: tool pattern library, 9.1; design, Execution: tenant, subject, tool, major version, key. The tenant is the
issuer (claim `iss`) and nothing else: where several tenants have one issuer, keep a store for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.json import canonical, digest
from pdp.manifest.fields import Pattern
from pdp.stores.key import IdempotencyKey

if TYPE_CHECKING:
    from pdp.flow.call import Call
    from pdp.session import Session


def key_of(call: Call) -> IdempotencyKey | None:
    """Return the key under which the call runs once; None where its entry demands none.

    Staging has its own: the action's, which gives the same action for the same key, in its present state. The
    compensation of an action always has one, the action's id alone: it is done once, whoever does it.
    """
    tool, session = call.checked.tool, call.session
    if tool is None or session is None or call.checked.idempotency_key is None:
        return None
    if call.compensates is not None:
        return IdempotencyKey.of_compensation(call.compensates.id)
    if tool.entry.pattern is Pattern.ACTION_STAGING or not tool.entry.idempotency.required:
        return None
    tenant, subject = _issuer(session), str(session.claims.get("sub"))
    return IdempotencyKey.of(tool.entry, tenant=tenant, subject=subject, key=call.checked.idempotency_key)


def arguments_digest(call: Call) -> str:
    """Return the digest of the arguments that were decided on."""
    return digest(call.proposal.text if call.proposal else b"")


def caller_of(session: Session) -> str:
    """Return who calls, as one text: what one caller has staged or looked up is not another's.

    Callers are told apart by issuer and subject (claims `iss`, `sub`), and by no other claim.
    """
    return canonical([_issuer(session), str(session.claims.get("sub"))]).decode()


def _issuer(session: Session) -> str:
    issuer = session.claims.get("iss")
    return issuer if isinstance(issuer, str) else ""
