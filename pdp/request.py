"""The request as the policy sees it (Rego's `input`): AuthZEN's subject, action, resource and context."""

from typing import Any, NamedTuple

from pdp.json import MAX_BYTES, JsonValueError, canonical, check_json


class Entity(NamedTuple):
    """A subject or a resource; `id` is unique within `type`."""

    type: str
    id: str
    properties: dict[str, Any]


class RequestedAction(NamedTuple):
    """What is to be done: the manifest entry's `pdp_action`, and in `properties` which entry of which manifest."""

    name: str
    properties: dict[str, Any]


class Request(NamedTuple):
    """One question to the policy, which itself checks the shape and types of what is in it."""

    subject: Entity
    action: RequestedAction
    resource: Entity
    context: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the request as plain JSON, as Rego sees it."""
        return {
            "subject": self.subject._asdict(),
            "action": self.action._asdict(),
            "resource": self.resource._asdict(),
            "context": self.context,
        }

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes that every engine is handed; JsonValueError beyond the bounds of `pdp.json`."""
        value = self.as_json()
        check_json(value)
        return bounded(canonical(value))


def bounded(body: bytes) -> bytes:
    """Return the request `body`; JsonValueError if it is larger than 1 MiB."""
    if len(body) > MAX_BYTES:
        raise JsonValueError(f"value: the request has {len(body)} bytes, at most {MAX_BYTES} are admitted")
    return body
