"""Lasting grants: approvals that reach beyond one call, and the protocol of their store.

`pdp.approvals.lasting` decides who may give, use and revoke a grant.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import orjson

from pdp.json import canonical, digest
from pdp.session import Person
from pdp.stores.approvals import Grant, LastingOffer, Reach, Transaction


class GrantState(StrEnum):
    """The state of a lasting grant. Only an active grant lets calls through."""

    ACTIVE = "active"
    REVOKED = "revoked"
    USED_UP = "used_up"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class LastingGrant:
    """An approval that people gave for similar calls of one run (`reach: run`), or of all runs until a time.

    Attributes:
        id: the id of the approval from which the grant was made.
        reach: `run` or `until`.
        scope: a digest of everything that must be equal in the calls; for the reach `run`, with the run's id.
        state: active, revoked, used up or expired.
        tool, subject, agent, run_id: of the approved call.
        requesters: the subject and the agents of the call. They and the approvers may revoke the grant.
        approvers: the roles that may approve the tool's calls.
        about: the arguments that limit the grant, as texts for people.
        most: the highest value of each argument that is a free or limited number.
        codes: the reason codes that the grant clears.
        grants: the people who gave the grant.
        created_at, expires_at: RFC 3339 in UTC with `Z`. The grant ends at `expires_at`.
        uses, uses_left: how many calls the grant could let through at first, and now.
        closed_at, closed_by, why: when, by whom and for what reason the grant was revoked.
        markings: of the data that the run had read before the approved call. The grant lets no other marked data leave.

    Examples:
        >>> from pdp import Approvals
        >>> Approvals().lasting.list()
        []
    """

    id: str
    reach: Reach
    scope: str
    state: GrantState
    tool: str
    subject: str
    agent: str | None
    run_id: str | None
    requesters: tuple[Person, ...]
    approvers: tuple[str, ...]
    about: dict[str, str]
    most: dict[str, float]
    codes: tuple[str, ...]
    grants: tuple[Grant, ...]
    created_at: str
    expires_at: str
    uses: int
    uses_left: int
    closed_at: str | None = None
    closed_by: Person | None = None
    markings: tuple[str, ...] = ()
    why: str | None = None

    def standing(self, now: str) -> GrantState:
        """Return the state at the time `now`. The stored state of an expired grant may still be `active`."""
        return GrantState.EXPIRED if self.state is GrantState.ACTIVE and now >= self.expires_at else self.state

    def usable(self, now: str, most: dict[str, float]) -> bool:
        """Return whether the grant lets a call through at `now` whose numbers are `most`."""
        return (
            self.standing(now) is GrantState.ACTIVE
            and self.created_at <= now
            and self.uses_left > 0
            and self.most.keys() == most.keys()
            and all(most[name] <= value for name, value in self.most.items())
        )

    def as_context(self, now: str) -> dict[str, Any]:
        """Return `context.grant` for the request to the policy; `age_seconds` is the grant's age at `now`."""
        return {
            "id": self.id,
            "reach": self.reach.value,
            "tool": self.tool,
            "run_id": self.run_id,
            "codes": list(self.codes),
            "markings": list(self.markings),
            "most": self.most,
            "age_seconds": int((datetime.fromisoformat(now) - datetime.fromisoformat(self.created_at)).total_seconds()),
            "uses_left": self.uses_left,
            "grants": [{"iss": each.iss, "sub": each.sub, "roles": list(each.roles)} for each in self.grants],
        }

    def as_json(self, now: str) -> dict[str, Any]:
        """Return the grant as plain JSON, with the state at the time `now`."""
        people = {"requesters": [person._asdict() for person in self.requesters]}
        closed_by = self.closed_by and self.closed_by._asdict()
        shown = {**asdict(self), **people, "closed_by": closed_by, "state": self.standing(now)}
        return dict(orjson.loads(orjson.dumps(shown)))


def scopes_of(offer: LastingOffer, run_id: str | None) -> dict[Reach, str]:
    """Return the scope of the grants that can cover a call, by reach. Without a run, no grant has the reach `run`."""
    scopes: dict[Reach, str] = {}
    if Reach.UNTIL in offer.reaches:
        scopes[Reach.UNTIL] = offer.scope
    if Reach.RUN in offer.reaches and run_id:
        scopes[Reach.RUN] = digest(canonical([offer.scope, run_id]))
    return scopes


class GrantStore(Protocol):
    """A thread-safe store of lasting grants. Each method is one atomic step."""

    def add(self, grant: LastingGrant) -> None:
        """Store a new grant."""

    def get(self, grant_id: str) -> LastingGrant | None:
        """Return the grant with this id, or None."""

    def list(
        self, *, scope: str | None = None, state: GrantState | None = None, run_id: str | None = None
    ) -> Sequence[LastingGrant]:
        """Return the grants with this scope, stored state and run, if given, in the order of insertion."""

    def replace(self, old: LastingGrant, new: LastingGrant, *, within: Transaction | None = None) -> bool:
        """Replace the stored grant `old` by `new`, in transaction `within`. If `old` is outdated, return False."""
