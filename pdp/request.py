"""The request as the policy sees it (Rego's `input`): AuthZEN's subject, action, resource and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pdp.json import MAX_BYTES, JsonValueError, canonical, check_json


@dataclass(frozen=True, slots=True)
class Entity:
    """A subject or a resource; `id` is unique within `type`."""

    type: str
    id: str
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done: the manifest entry's `pdp_action`, and in `properties` which entry of which manifest."""

    name: str
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the policy: may this subject do this action to this resource, in this context?

    The policy itself checks the shape and types of what is in it.
    """

    subject: Entity
    action: Action
    resource: Entity
    context: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the request as plain JSON, as Rego sees it."""
        subject, action, resource = self.subject, self.action, self.resource
        return {
            "subject": {"type": subject.type, "id": subject.id, "properties": subject.properties},
            "action": {"name": action.name, "properties": action.properties},
            "resource": {"type": resource.type, "id": resource.id, "properties": resource.properties},
            "context": self.context,
        }

    def as_bytes(self) -> bytes:
        """Return the RFC 8785 bytes of a request whose parts were all checked by `check_json` before.

        Raises:
            JsonValueError: larger than 1 MiB.
        """
        return bounded(canonical(self.as_json()))

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes that every engine is handed.

        Raises:
            JsonValueError: not JSON within the bounds of `pdp.json`, or larger than 1 MiB.
        """
        value = self.as_json()
        check_json(value)
        return bounded(canonical(value))


def bounded(body: bytes) -> bytes:
    """Return the request `body`, unless it is too large.

    Raises:
        JsonValueError: larger than 1 MiB.
    """
    if len(body) > MAX_BYTES:
        raise JsonValueError(f"value: the request has {len(body)} bytes, at most {MAX_BYTES} are admitted")
    return body
