"""The request as the policy sees it (Rego's `input`): AuthZEN's subject, action, resource and context."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

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

    @model_validator(mode="after")
    def _is_json(self) -> Self:
        check_json(self.as_json())
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the request as plain JSON, as Rego sees it."""
        return {
            "subject": self.subject.__dict__,
            "action": self.action.__dict__,
            "resource": self.resource.__dict__,
            "context": self.context,
        }

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes that every engine is handed.

        Raises:
            JsonValueError: larger than 1 MiB.
        """
        body = canonical(self.as_json())
        if len(body) > MAX_BYTES:
            raise JsonValueError(f"value: the request has {len(body)} bytes, at most {MAX_BYTES} are admitted")
        return body
