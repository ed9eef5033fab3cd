"""What another enforcement point is told of its call, as plain JSON."""

from typing import Any, Final

import orjson

from pdp.evaluation import Evaluation
from pdp.flow.execute import evaluation_of
from pdp.flow.stages import Decided, Executed, Ready
from pdp.stores.remote_calls import RemoteCall

_SHOWN: Final = (
    "action", "codes", "executed", "failed_check", "markings", "replayed", "result", "retrieval_snapshot", "state",
    "trips",
)  # fmt: skip


def ended(call_id: str, result: Decided | Executed) -> dict[str, Any]:
    """Return the answer to a call that the other one does not run, or has run."""
    return as_answer(evaluation_of(result)) | {"id": call_id}


def begun(row: RemoteCall, ready: Ready) -> dict[str, Any]:
    """Return the answer to a call that the other one runs now."""
    return ended(row.id, ready.decided._replace(action=ready.action)) | {
        "begun": True,
        "answer": None,  # there is nothing yet for the model to see
        "arguments": orjson.loads(ready.prepared.checked.proposal.text),
        "running_until": row.running_until,
        "manifest_digest": ready.decided.asked.received.manifest.digest,
    }


def as_answer(evaluation: Evaluation) -> dict[str, Any]:
    """Return what a remote enforcement point is told of a call, plain JSON."""
    approval, answer = evaluation.approval, evaluation.answer
    shown = {
        **evaluation.as_json(),
        **{name: getattr(evaluation, name) for name in _SHOWN},
        "begun": False,
        "approval": approval and approval.as_json(),
        "answer": {"text": answer.text, "is_error": answer.is_error},
    }
    return dict(orjson.loads(orjson.dumps(shown)))
