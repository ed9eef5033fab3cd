"""The request as the policy sees it (Rego's `input`): AuthZEN's subject, action, resource and context."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from pdp.canonical import MAX_BYTES, JsonValueError, canonical, check_json


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Entity(_Frozen):
    """A subject or a resource; `id` is unique within `type`."""

    type: str
    id: str
    properties: dict[str, Any]


class Action(_Frozen):
    """What is to be done: the manifest entry's `pdp_action`, and in `properties` which entry of which manifest."""

    name: str
    properties: dict[str, Any]


class Request(_Frozen):
    """One question to the policy: may this subject do this action to this resource, in this context?"""

    subject: Entity
    action: Action
    resource: Entity
    context: dict[str, Any]

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes that every engine is handed.

        Raises:
            JsonValueError: not JSON within the bounds of `pdp.canonical`, or larger than 1 MiB.
        """
        value = {
            "subject": self.subject.__dict__,
            "action": self.action.__dict__,
            "resource": self.resource.__dict__,
            "context": self.context,
        }
        check_json(value)
        body = canonical(value)
        if len(body) > MAX_BYTES:
            raise JsonValueError(f"value: the request has {len(body)} bytes, at most {MAX_BYTES} are admitted")
        return body
