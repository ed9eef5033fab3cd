"""Approvals: the record of what a person is asked to approve, and the protocol of their store.

Who may change a record is in `pdp.approvals`.

Source: tool pattern library, pattern 7 (an approval request is a task): its subject is `request`, its queue
`approvers`, its rationale `reasons`, its end `expires_at`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol, Self

import orjson

from pdp.clock import LAST_SECOND, to_seconds
from pdp.decision import new_id
from pdp.json import digest
from pdp.manifest.fields import SUBJECT, EffectClass, duration_seconds, normal_duration
from pdp.manifest.model import Tool
from pdp.session import Person

_TOKEN_CLAIMS: Final = {"token": ("jti",), "client": ("azp", "client_id"), "session": ("sid",)}

TokenMarks = dict[str, tuple[str, ...]]
"""Digests of what tells a token from another: its id, its client, its session; what is not stated is left out."""


def token_marks(*tokens: Mapping[str, Any]) -> TokenMarks:
    """Return the marks of the tokens that have these claims."""
    stated = {
        kind: {
            digest(value.encode("utf-8", "surrogatepass"))
            for claims in tokens
            for name in names
            if (value := _text(claims.get(name)))
        }
        for kind, names in _TOKEN_CLAIMS.items()
    }
    return {kind: tuple(sorted(digests)) for kind, digests in stated.items() if digests}


def are_two_tokens(first: TokenMarks, second: TokenMarks) -> bool:
    """Return whether something that both state differs, and their ids are not the same; in doubt they are one."""
    shared = first.keys() & second.keys()
    differing = {kind for kind in shared if set(first[kind]).isdisjoint(second[kind])}
    return bool(differing) and ("token" not in shared or "token" in differing)


class ApprovalState(StrEnum):
    """Where an approval stands. Only `granted` lets a call through, and it does so once."""

    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    CONSUMED = "consumed"


@dataclass(frozen=True, slots=True)
class Grant:
    """One person's approval. `roles` are those by which it counts; `at` is RFC 3339 in UTC with `Z`.

    The role `$subject` is given here alone, to whoever approves what their own agent asks; `token`: by which token.
    """

    iss: str | None
    sub: str
    roles: tuple[str, ...]
    at: str
    token: TokenMarks = field(default_factory=dict)

    @property
    def person(self) -> Person:
        """Who gave it."""
        return Person(self.iss, self.sub)


@dataclass(frozen=True, slots=True)
class Approval:
    """One call that waits, or waited, for people's approval. Times are RFC 3339 in UTC with `Z`, to the second.

    Attributes:
        call_digest: the call that it is for, and no other: all of the request but time, request ids and approval.
        requesters: the subject, every agent that acts for it, and whoever proposed the call to a service with their
            own token; none of them may grant.
        approvers: the roles of which an approver has one; `$subject`: or is the subject; empty: nobody can grant.
        body: the decided request as canonical JSON, which is what an approver is shown.
        reasons: the codes that asked for it.
        closed_at, closed_by: when and by whom it was denied, withdrawn or used; `why`: the reason they gave.
        action_id: the action that was staged for the call, where it has effects.
        task: what those who decide were told (pattern 7): queue or principal, rationale, evidence, sla.
        token: the tokens of the call: of its session, and of the request to a service. A grant needs another one.
    """

    id: str
    state: ApprovalState
    call_digest: str
    tool: str
    tool_version: str | None
    action: str
    subject: str
    agent: str | None
    requesters: tuple[Person, ...]
    manifest_digest: str
    approvers: tuple[str, ...]
    quorum: int
    opened_at: str
    expires_at: str
    body: bytes = field(repr=False)
    reasons: tuple[str, ...]
    idempotency_key: str | None = None
    run_id: str | None = None
    grants: tuple[Grant, ...] = ()
    closed_at: str | None = None
    closed_by: Person | None = None
    why: str | None = None
    action_id: str | None = None
    decision_id: str | None = None
    task: dict[str, Any] | None = None
    token: TokenMarks = field(default_factory=dict)

    @classmethod
    def asked(
        cls,
        body: bytes,
        entry: Tool,
        reasons: Sequence[str],
        decision_id: str | None = None,
        *,
        claims: Mapping[str, Any] | None = None,
        proposer: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the new, pending approval of a call, opened at the `context.time` of its decided request, `body`.

        The tool's effective entry says who approves, how many of them, and until when. The subject is among them only
        where an agent acts, and never for commit-high. `claims`: those of the call's session; `proposer`: those of the
        token that proposed it to a service, which may speak for other subjects.
        """
        request = orjson.loads(body)
        subject, context = request["subject"], request["context"]
        requesters = list(_requesters(subject, context.get("agent")))
        agents = [person.sub for person in requesters[1:]]
        approvers = entry.approval.approvers or ()
        if not agents or entry.effect_class is EffectClass.COMMIT_HIGH:
            approvers = tuple(role for role in approvers if role != SUBJECT)
        requesters += [person for person in _proposers(proposer or {}) if person not in requesters]
        # Rounded down: an approval may end a little too early, and never too late.
        ends = datetime.fromisoformat(context["time"]).timestamp() + int(duration_seconds(entry.approval.expires))
        return cls(
            id=new_id(),
            state=ApprovalState.PENDING,
            call_digest=context["call_digest"],
            tool=entry.name,
            tool_version=entry.version,
            action=request["action"]["name"],
            subject=subject["id"],
            agent=context.get("agent") or (agents[0] if agents else None),
            requesters=tuple(requesters),
            manifest_digest=request["action"]["properties"]["manifest_digest"],
            approvers=tuple(approvers),
            quorum=entry.approval.quorum,
            opened_at=context["time"],
            expires_at=to_seconds(min(ends, LAST_SECOND)),
            body=body,
            reasons=tuple(reasons),
            idempotency_key=context.get("idempotency_key"),
            run_id=context.get("run_id"),
            decision_id=decision_id,
            token=token_marks(claims or {}, proposer or {}),
        )

    @property
    def request(self) -> dict[str, Any]:
        """The decided request, a copy."""
        return dict(orjson.loads(self.body))

    @property
    def lifetime(self) -> str:
        """For how long it can be decided on, as a duration."""
        opened, expires = datetime.fromisoformat(self.opened_at), datetime.fromisoformat(self.expires_at)
        return normal_duration(f"PT{(expires - opened).total_seconds():.0f}S")

    def expired(self, now: str) -> bool:
        """Return whether it has expired at `now`; at `expires_at` it has."""
        return now >= self.expires_at

    @property
    def standing(self) -> ApprovalState:
        """Its state by the clock: where its time is over, the store may not say so yet."""
        is_open = self.state in (ApprovalState.PENDING, ApprovalState.GRANTED)
        return ApprovalState.EXPIRED if is_open and self.expired(to_seconds(time.time())) else self.state

    def usable(self, now: str) -> bool:
        """Return whether it lets its call through at `now`: granted by enough people, opened, and not expired."""
        return (
            self.state is ApprovalState.GRANTED
            and len(self.grants) >= self.quorum
            and self.opened_at <= now < self.expires_at
        )

    def is_for(self, claims: Mapping[str, Any], proposer: Mapping[str, Any]) -> bool:
        """Return whether a call with these claims, proposed by that token, may use it.

        Nobody proposes what they have granted themselves; the subject may, by another token than the one that granted.
        """
        marks, people = token_marks(claims, proposer), [*_proposers(proposer)]
        return all(
            are_two_tokens(grant.token, marks) if SUBJECT in grant.roles else not any(map(grant.person.may_be, people))
            for grant in self.grants
        )

    def as_context(self, now: str) -> dict[str, Any]:
        """Return what the policy sees of it as `context.approval`; `age_seconds` is counted to `now`."""
        return {
            "id": self.id,
            "call_digest": self.call_digest,
            "age_seconds": int((datetime.fromisoformat(now) - datetime.fromisoformat(self.opened_at)).total_seconds()),
            "expires_at": self.expires_at,
            "grants": [
                {"iss": grant.iss, "sub": grant.sub, "roles": list(grant.roles), "at": grant.at}
                for grant in self.grants
            ],
        }

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain JSON, `request` as an object; its state is where it stands."""
        whole = asdict(self)
        del whole["body"]
        people = [person._asdict() for person in self.requesters]
        closed_by = self.closed_by and self.closed_by._asdict()
        shown = {**whole, "requesters": people, "closed_by": closed_by, "request": self.request, "state": self.standing}
        return dict(orjson.loads(orjson.dumps(shown)))


class Transaction(Protocol):
    """A transaction that one store has begun, for another store of the same database to take part in."""


class ApprovalStore(Protocol):
    """A store of approvals. Safe to share between threads; each method is one atomic step.

    `blocking`: whether its methods wait for a disk or a network, so that an event loop should not call them itself.
    """

    blocking: bool

    def add(self, approval: Approval) -> Approval:
        """Add a pending approval and return it; or return, unchanged, the pending one of the same `call_digest`."""

    def get(self, approval_id: str) -> Approval | None:
        """Return the approval of that id, if there is one."""

    def list(
        self, *, call_digest: str | None = None, state: ApprovalState | None = None, subject: str | None = None
    ) -> Sequence[Approval]:
        """Return the approvals in the order of being added; of one call, state or subject where that is stated."""

    def replace(self, old: Approval, new: Approval, *, within: Transaction | None = None) -> bool:
        """Put `new` in the place of `old` if what is stored equals `old`, and return whether it did.

        `within`: the transaction to do it in, for a store of the same database.
        """


def _requesters(subject: dict[str, Any], agent: str | None) -> Iterator[Person]:
    # An issuer that is not a text counts as absent: then an equal `sub` is the same person, whoever issued it.
    properties = subject["properties"]
    yield Person(_text(properties.get("iss")), subject["id"])
    if agent:
        yield Person(None, agent)
    actor = properties.get("act")
    while isinstance(actor, dict):
        if _text(actor.get("sub")):
            yield Person(_text(actor.get("iss")), actor["sub"])
        actor = actor.get("act")


def _proposers(claims: Mapping[str, Any]) -> Iterator[Person]:
    if sub := _text(claims.get("sub")):
        yield from _requesters({"id": sub, "properties": claims}, None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
