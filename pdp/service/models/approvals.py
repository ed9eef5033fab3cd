"""Request and answer bodies for approvals. The stored record is `pdp.stores.approvals.Approval`."""

import time
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Final

import orjson
from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from typing_extensions import TypeAliasType

from pdp.clock import to_seconds
from pdp.json import canonical
from pdp.service.models import DIGITS, Body, JsonObject
from pdp.session import LONGEST_TEXT, Person
from pdp.stores.approvals import Approval, ApprovalState, Reach
from pdp.stores.grants import LastingGrant

_PERSON: Final = {
    "type": "object",
    "description": "A person or an agent. `sub` is unique for its issuer, `iss`, which is null if none is stated.",
    "properties": {"iss": {"type": ["string", "null"]}, "sub": {"type": "string"}},
    "required": ["iss", "sub"],
}
Filter = Annotated[str, Field(max_length=LONGEST_TEXT)]
PersonBody = TypeAliasType(  # The class gives this type a name in the OpenAPI document.
    "PersonBody",
    Annotated[
        Person,
        PlainSerializer(Person._asdict, return_type=dict[str, str | None]),
        WithJsonSchema(_PERSON, mode="serialization"),
    ],
)
RequestBody = Annotated[
    bytes,
    Field(alias="request"),
    BeforeValidator(canonical),
    PlainSerializer(orjson.loads, return_type=JsonObject),
]


@dataclass(frozen=True, slots=True)
class ApprovalBody(Approval):
    """An approval in its current state. `request` is the request that the policy decided."""

    body: RequestBody = field(repr=False)
    requesters: tuple[PersonBody, ...]
    closed_by: PersonBody | None = None
    task: JsonObject | None = None
    url: str | None = None

    @classmethod
    def of(cls, approval: Approval) -> "ApprovalBody":
        """Convert a stored approval to an answer body with its current state."""
        stands = replace(approval, state=approval.standing)
        return cls(**{each.name: getattr(stands, each.name) for each in fields(stands)})

    def record(self) -> Approval:
        """Convert the answer body back to an approval record."""
        return Approval(**{each.name: getattr(self, each.name) for each in fields(self)})


class ApprovalsQuery(Body):
    """Filters and page of a list of approvals. `after` is `next` of the previous page; `limit` is the page's size."""

    state: ApprovalState | None = None
    subject: Filter | None = None
    tool: Filter | None = None
    run_id: Filter | None = None
    limit: Annotated[int, Field(ge=1), DIGITS] | None = None
    after: Annotated[str, Field(pattern="^[0-9A-Za-z]+$")] | None = None


class ApprovalsPage(Body):
    """Approvals, the oldest first. `next` is null on the last page."""

    approvals: list[ApprovalBody]
    next: str | None


class WaitQuery(Body):
    """How long to wait for a decision, in seconds, such as `30s`. The maximum is the setting `limits.wait_seconds`."""

    wait: Annotated[str, Field(pattern=r"^[0-9]{1,2}s?$")] = "0s"


class GrantChoice(Body):
    """How far the grant reaches. `until` is its end; the tool's entry limits it, and says how long it lasts without."""

    reach: Reach = Reach.ONCE
    until: str | None = None


@dataclass(frozen=True, slots=True)
class GrantBody(LastingGrant):
    """A lasting grant in its current state."""

    requesters: tuple[PersonBody, ...]
    closed_by: PersonBody | None = None

    @classmethod
    def of(cls, grant: LastingGrant) -> "GrantBody":
        """Convert a stored grant to an answer body with its current state."""
        values = {each.name: getattr(grant, each.name) for each in fields(grant)}
        return cls(**{**values, "state": grant.standing(to_seconds(time.time()))})

    def record(self) -> LastingGrant:
        """Convert the answer body back to a grant."""
        return LastingGrant(**{each.name: getattr(self, each.name) for each in fields(self)})


class GrantsQuery(Body):
    """Which grants to list. `after` is `next` of the previous page; `limit` is the page's size."""

    active: bool = False
    limit: Annotated[int, Field(ge=1), DIGITS] | None = None
    after: Annotated[str, Field(pattern="^[0-9A-Za-z]+$")] | None = None


class GrantsPage(Body):
    """Lasting grants, the oldest first. `next` is null on the last page."""

    grants: list[GrantBody]
    next: str | None


class Denial(Body):
    """The reason of a denial or of a revocation, which is recorded."""

    reason: str | None = None


class Nothing(Body):
    """An empty object. The body may be omitted."""
