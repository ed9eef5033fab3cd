"""From what a model proposed to what the policy is asked: proposal -> contract -> request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdp.contract.checks import ProposalPrunedError, check
from pdp.contract.mapping import MappingError, build_request
from pdp.decision import denied, new_id
from pdp.engine.protocol import REQUEST_INVALID
from pdp.errors import UsageError
from pdp.json import JsonValueError, canonical
from pdp.manifest.expressions.expression import ExpressionError
from pdp.proposal import Proposal, ProposalRejectedError, RejectionCode
from pdp.request import bounded
from pdp.session import Session

if TYPE_CHECKING:
    from pdp.contract.compiled import CompiledManifest
    from pdp.flow.call import Call
    from pdp.request import Request


def prepare(call: Call, proposal: Any, session: Any, manifest: CompiledManifest) -> Request | None:
    """Check a proposal, writing what is found into `call`, and return the request that it makes.

    None when there is nothing to ask: then `call` is rejected, pruned, or denied.
    """
    try:
        call.session = Session.read(session)
        call.request_id = call.request_id or call.session.request_id or new_id()
        call.proposal = Proposal.read(proposal)
        tool = check(call.proposal, call.session, manifest, call.checked)
        # What invariants corrected is what is decided on, and what runs.
        call.proposal = call.checked.proposal or call.proposal
        return build_request(
            tool,
            call.proposal,
            call.session,
            call.checked.idempotency_key,
            request_id=call.request_id,
            now=call.now,
        )
    except ProposalPrunedError:
        call.pruned = True
    except ProposalRejectedError as error:
        call.reject(error.rejection, error.message)
    except (MappingError, ExpressionError) as error:
        call.reject(RejectionCode.INVALID_PAYLOAD, error.message)
    except (UsageError, JsonValueError) as error:
        call.decision = denied(REQUEST_INVALID, str(error))
    return None


def build(call: Call, request: Request) -> bytes | None:
    """Return the bytes of a request, approval and all, and keep them in `call`; None when it cannot be asked."""
    try:
        # Not `Request.canonical`, which would walk the whole request once more: claims and facts were checked with the
        # session, the arguments with the proposal, what expressions compute by `Expression.evaluate`, and the names of
        # an approval's people when they granted it.
        call.body = bounded(canonical(request.as_json()))
    except JsonValueError as error:
        call.decision = denied(REQUEST_INVALID, str(error))
    return call.body
