"""The request that the policy evaluates (Rego's `input`): subject, action, resource and context, as in AuthZEN."""

from typing import Any, NamedTuple

from pdp.json import MAX_BYTES, JsonValueError, canonical, check_json


class Entity(NamedTuple):
    """A subject or a resource; `id` is unique within `type`."""

    type: str
    id: str
    properties: dict[str, Any]


class RequestedAction(NamedTuple):
    """The action of a request, which is a tool's `pdp_action`; `properties` name the tool and its manifest."""

    name: str
    properties: dict[str, Any]


class Request(NamedTuple):
    """One request to the policy. The policy checks the shape and types of the content."""

    subject: Entity
    action: RequestedAction
    resource: Entity
    context: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the request as plain JSON, which is Rego's `input`."""
        return {
            "subject": self.subject._asdict(),
            "action": self.action._asdict(),
            "resource": self.resource._asdict(),
            "context": self.context,
        }

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes that every engine gets. Raises `JsonValueError` beyond the limits of `pdp.json`."""
        value = self.as_json()
        check_json(value)
        return bounded(canonical(value))


def bounded(body: bytes) -> bytes:
    """Return the serialised request `body`; raise `JsonValueError` if it is larger than 1 MiB."""
    if len(body) > MAX_BYTES:
        raise JsonValueError(f"value: the request has {len(body)} bytes, but at most {MAX_BYTES} are allowed")
    return body
