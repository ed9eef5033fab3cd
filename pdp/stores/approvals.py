"""Approvals: the record of a call that needs a person's approval, and the protocol of the store.

Source: tool pattern library, pattern 7 (an approval request is a task). The task's subject is `request`, its queue is
`approvers`, its rationale is `reasons`, and its end is `expires_at`. `pdp.approvals` decides who may change a record.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Protocol, Self

import orjson
from pydantic import Field

from pdp.clock import LAST_SECOND, to_seconds
from pdp.decision import new_id
from pdp.json import canonical, digest
from pdp.manifest.fields import NAMED_BY_PEOPLE, SUBJECT, ArgumentRole, EffectClass, duration_seconds, normal_duration
from pdp.manifest.model import Tool
from pdp.session import Person

MASKED: Final = "(sensitive)"
# Fields of the context that differ between the calls of one lasting grant. The arguments are compared one by one.
_OF_ONE_CALL: Final = frozenset((
    "approval", "arguments", "call_digest", "flow", "grant", "idempotency_key", "request_id", "run_id", "spent", "time",
))  # fmt: skip
_LONGEST_SHOWN: Final = 200
# Any other URL is compared as a whole, such as one with a user name, a backslash or letters outside of ASCII.
_ORIGIN: Final = re.compile(r"(https?://[a-z0-9.-]+(?::[0-9]{1,5})?)(?:/[!-\[\]-~]*)?", re.ASCII | re.IGNORECASE)
_TOKEN_CLAIMS: Final = {"token": ("jti",), "client": ("azp", "client_id"), "session": ("sid",)}

TokenMarks = dict[str, tuple[str, ...]]
"""Digests of a token's id, client and session, keyed `token`, `client` and `session`. Absent claims have no key."""


def token_marks(*tokens: Mapping[str, Any]) -> TokenMarks:
    """Return digests that identify the tokens from which these claims were read."""
    marks = {
        kind: {
            digest(value.encode("utf-8", "surrogatepass"))
            for claims in tokens
            for name in names
            if (value := _text(claims.get(name)))
        }
        for kind, names in _TOKEN_CLAIMS.items()
    }
    return {kind: tuple(sorted(digests)) for kind, digests in marks.items() if digests}


def are_two_tokens(first: TokenMarks, second: TokenMarks) -> bool:
    """Return whether two tokens surely differ: in a shared claim and, if both tokens have ids, in the ids."""
    shared = first.keys() & second.keys()
    differing = {kind for kind in shared if set(first[kind]).isdisjoint(second[kind])}
    return bool(differing) and ("token" not in shared or "token" in differing)


class ApprovalState(StrEnum):
    """The state of an approval. Only `granted` allows the call, and only once."""

    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    CONSUMED = "consumed"


class Reach(StrEnum):
    """How far an approval reaches: one call, similar calls of the same run, or similar calls until a time."""

    ONCE = "once"
    RUN = "run"
    UNTIL = "until"


@dataclass(frozen=True, slots=True)
class LastingOffer:
    """How far people may let the approval of a call reach, from the field `approval.lasting` of the tool's entry.

    Attributes:
        reaches: `run`, `until`, or both.
        seconds: how long a grant may last.
        uses: how many calls a grant may let through.
        scope: a digest of everything that must be equal in the calls: tool, entry, people, purpose, arguments.
        about: the arguments that limit the grant, as texts for people.
        most: the values of free and limited numbers in the approved call. They are the highest values of later calls.
    """

    reaches: tuple[Reach, ...]
    seconds: int
    uses: int
    scope: str
    about: dict[str, str]
    most: dict[str, float]


@dataclass(frozen=True, slots=True)
class Grant:
    """The approval of one person, given at the time `at` (RFC 3339 in UTC with `Z`)."""

    iss: str | None
    sub: str
    roles: tuple[str, ...]  # The person's roles that count, or `$subject` if the person's agent made the call.
    at: str
    token: TokenMarks = field(default_factory=dict)  # Marks of the token of a person who approves as `$subject`.
    reach: Reach = Reach.ONCE
    until: str | None = None  # The end of a grant with the reach `run` or `until`.

    @property
    def person(self) -> Person:
        """The person who gave this approval."""
        return Person(self.iss, self.sub)


@dataclass(frozen=True, slots=True)
class Approval:
    """The record of one call that needs, or needed, people's approval. Times are RFC 3339 in UTC with `Z`, in seconds.

    Attributes:
        id: the id of the approval.
        state: pending, granted, denied, withdrawn, consumed or expired; see `standing`.
        call_digest: identifies the call: the request without time, request ids and approval. No other call can use it.
        tool, tool_version, action: the tool of the call, and the `pdp_action` of the tool's manifest entry.
        subject, agent: the subject of the call, and the agent that acts for the subject.
        requesters: the subject, every agent that acts for the subject, and the person who proposed the call to a
            service. Of them, only the subject may grant, by `$subject`.
        manifest_digest: the digest of the manifest that was in force for the call.
        approvers: the roles that may approve; `$subject` for the subject. If empty, the approval cannot be granted.
        quorum: the number of people who have to grant the approval.
        opened_at, expires_at: when the approval was opened, and when it expires.
        body: the decided request as canonical JSON, which approvers see.
        reasons: the reason codes of the STEP_UP.
        idempotency_key, run_id, decision_id: as in the audit.
        grants: the grants so far.
        closed_at, closed_by, why: when, by whom and why the approval was denied, withdrawn or used.
        action_id: the action that was staged for the call; None for a call without effects.
        task: further facts for approvers (pattern 7): queue or principal, rationale, evidence, sla.
        token: the tokens of the call. A grant needs another token.
        lasting: how far people may let the approval reach; None if the approval is for this call only.
        url: the address of the approval's page in the console, which stores do not keep; None if there is no console.

    Examples:
        >>> from pathlib import Path
        >>> from pdp import Approvals, Pep, Session
        >>> session = Session.model_validate_json(Path("session.json").read_text())
        >>> wire = {"beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "a", "reference": "INV-1"}
        >>> with Pep.from_project("pdp.yaml", approvals=Approvals()) as pep:
        ...     approval = pep.decide({"tool": "initiate_wire", "arguments": wire}, session, hold=True).approval
        >>> approval.state.value, approval.approvers, approval.quorum
        ('pending', ('payments.approver',), 1)
        >>> pep.approvals.grant(approval.id, {"sub": "approver-7", "roles": ["payments.approver"]}).state.value
        'granted'
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
    lasting: LastingOffer | None = None
    url: Annotated[str | None, Field(exclude=True)] = field(default=None, compare=False)

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
        """Return a new pending approval for a call. It opens at the `context.time` of the call's request.

        The tool's effective entry defines approvers, quorum and expiry. The subject may approve only if an agent acts
        for the subject, and never a tool with the effect class commit-high.

        Args:
            body: the decided request as canonical JSON.
            entry: the tool's effective entry.
            reasons: the reason codes of the STEP_UP.
            decision_id: the id of the decision.
            claims: the claims of the session.
            proposer: the claims of the token that proposed the call to a service.
        """
        request = orjson.loads(body)
        subject, context = request["subject"], request["context"]
        requesters = list(_requesters(subject, context.get("agent")))
        agents = [person.sub for person in requesters[1:]]
        approvers = entry.approval.approvers or ()
        if not agents or entry.effect_class is EffectClass.COMMIT_HIGH:
            approvers = tuple(role for role in approvers if role != SUBJECT)
        requesters += [person for person in _proposers(proposer or {}) if person not in requesters]
        # The time is rounded down, so that an approval may end a little early but never late.
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
            lasting=lasting_offer(request, entry),
        )

    @property
    def request(self) -> dict[str, Any]:
        """A copy of the request for which the policy requires approval."""
        return dict(orjson.loads(self.body))

    @property
    def reach(self) -> Reach:
        """How far the grants let the approval reach: the shortest reach that a person chose."""
        return min((grant.reach for grant in self.grants), key=list(Reach).index, default=Reach.ONCE)

    @property
    def lifetime(self) -> str:
        """The time between opening and expiry, as an ISO 8601 duration."""
        opened, expires = datetime.fromisoformat(self.opened_at), datetime.fromisoformat(self.expires_at)
        return normal_duration(f"PT{(expires - opened).total_seconds():.0f}S")

    def expired(self, now: str) -> bool:
        """Return whether the approval has expired at the time `now`. At `expires_at`, the approval has expired."""
        return now >= self.expires_at

    @property
    def standing(self) -> ApprovalState:
        """The state at the current time. The stored state of an expired approval may still be pending or granted."""
        is_open = self.state in (ApprovalState.PENDING, ApprovalState.GRANTED)
        return ApprovalState.EXPIRED if is_open and self.expired(to_seconds(time.time())) else self.state

    def usable(self, now: str) -> bool:
        """Return whether the approval allows its call at `now`: granted by the quorum, opened, and not expired."""
        return (
            self.state is ApprovalState.GRANTED
            and len(self.grants) >= self.quorum
            and self.opened_at <= now < self.expires_at
        )

    def is_for(self, claims: Mapping[str, Any], proposer: Mapping[str, Any]) -> bool:
        """Return whether a call with these claims, proposed with the token `proposer`, may use the approval.

        The proposer must not have granted the approval. The call must not have the token of a grant by the subject.
        """
        return are_for(self.grants, claims, proposer)

    def as_context(self, now: str) -> dict[str, Any]:
        """Return `context.approval` for the request to the policy; `age_seconds` is the approval's age at `now`."""
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
        """Return the approval as plain JSON, with `request` as an object and the state at the current time."""
        whole = asdict(self)
        del whole["body"]
        people = [person._asdict() for person in self.requesters]
        closed_by = self.closed_by and self.closed_by._asdict()
        shown = {**whole, "requesters": people, "closed_by": closed_by, "request": self.request, "state": self.standing}
        return dict(orjson.loads(orjson.dumps(shown)))


def are_for(grants: Sequence[Grant], claims: Mapping[str, Any], proposer: Mapping[str, Any]) -> bool:
    """Return whether a call with these claims, proposed with the token `proposer`, may use the grants."""
    marks, people = token_marks(claims, proposer), [*_proposers(proposer)]
    return all(
        are_two_tokens(grant.token, marks) if SUBJECT in grant.roles else not any(map(grant.person.may_be, people))
        for grant in grants
    )


def lasting_offer(request: Mapping[str, Any], entry: Tool) -> LastingOffer | None:
    """Return how far an approval of this request may reach; None if the tool's entry has no `approval.lasting`."""
    lasting, context = entry.approval.lasting, request["context"]
    if lasting is None or entry.effect_class in (None, EffectClass.COMMIT_HIGH) or not entry.approval.approvers:
        return None
    arguments = context["arguments"]
    # A role may name a part of an argument, such as `/attachments/*/path`. The whole argument is then compared.
    roles = {name.removeprefix("/"): role for name, role in (entry.roles or {}).items()}
    free = {pointer[1:] for pointer in lasting.free}
    names = [pointer[1:] for pointer in lasting.by or ()] or [
        name.split("/")[0] for name in roles if roles[name] in NAMED_BY_PEOPLE
    ]
    shown = {name: _key_of(arguments[name], roles.get(name)) for name in names if name in arguments}
    if not shown:
        return None
    compared = {name: value for name, value in arguments.items() if name not in free} | shown
    numbers = free | {limit.argument for limit in entry.limits if limit.argument is not None}
    most = {name: value for name in numbers if type(value := arguments.get(name)) in (int, float)}
    people = [person._asdict() for person in _requesters(request["subject"], context.get("agent"))]
    facts = {name: value for name, value in context.items() if name not in _OF_ONE_CALL}
    resource = {
        **request["resource"]["properties"],
        "type": request["resource"]["type"],
        "id": request["resource"]["id"],
    }
    # What the manifest computes from an argument that may differ would differ as well.
    differing = free | {name for name, value in shown.items() if value != arguments[name]}
    mapped = [_mapped(resource, entry.resource, differing), _mapped(facts, entry.context, differing)]
    described = entry.model_dump(mode="json", by_alias=True, exclude_none=True)
    # A freed argument that is absent differs from one that is present.
    parts = [described, people, mapped, compared, sorted(free & arguments.keys())]
    about = {name: value if isinstance(value, str) else canonical(value).decode() for name, value in shown.items()}
    about = {
        name: MASKED if name in entry.sensitive else without_middle(text, _LONGEST_SHOWN)
        for name, text in about.items()
    }
    seconds = int(duration_seconds(lasting.max))
    return LastingOffer(
        tuple(map(Reach, lasting.reaches)), seconds, lasting.uses, digest(canonical(parts)), about, most
    )


def without_middle(text: str, most: int) -> str:
    """Return a text without its middle if it has more than `most` characters, with a mark in its place."""
    cut, half = len(text) - most, most // 2
    return text if cut <= 0 else f"{text[:half]}[... {cut} characters left out ...]{text[-half:]}"


def _mapped(
    values: Mapping[str, Any], mapping: Mapping[str, Any] | None, differing: AbstractSet[str]
) -> dict[str, Any]:
    def differs(name: str) -> bool:
        # Session facts and claims may have the names of arguments, but they must be equal.
        text = str((mapping or {}).get(name, ""))
        return any(re.search(rf"""\barguments(\.|\[['"]){re.escape(each)}\b""", text) for each in differing)

    return {name: value for name, value in values.items() if not differs(name)}


def _key_of(value: Any, role: ArgumentRole | None) -> Any:
    """Return the origin of a URL, such as `https://a.example:8443`; of any other argument, its value."""
    if role not in (ArgumentRole.URL, ArgumentRole.ADDRESS) or not isinstance(value, str):
        return value
    match = _ORIGIN.fullmatch(value)
    return match[1].lower() if match else value


class Transaction(Protocol):
    """An open transaction of one store, in which other stores of the same database can take part."""


class ApprovalStore(Protocol):
    """A thread-safe store of approvals. Each method is one atomic step.

    A store may have the attribute `lasting`, a `GrantStore`. Otherwise lasting grants are kept in memory.
    """

    blocking: bool  # Whether the methods wait for a disk or a network.

    def add(self, approval: Approval) -> Approval:
        """Add a pending approval. If the call (`call_digest`) already has one, return the stored approval."""

    def get(self, approval_id: str) -> Approval | None:
        """Return the approval with this id, or None."""

    def list(
        self, *, call_digest: str | None = None, state: ApprovalState | None = None, subject: str | None = None
    ) -> Sequence[Approval]:
        """Return the approvals of a call, state and subject, if given, in the order of insertion."""

    def replace(self, old: Approval, new: Approval, *, within: Transaction | None = None) -> bool:
        """Replace the stored approval `old` by `new`, in transaction `within`. If `old` is outdated, return False."""


def _requesters(subject: dict[str, Any], agent: str | None) -> Iterator[Person]:
    # An issuer that is not a text counts as absent. Without an issuer, people with an equal `sub` are treated as one
    # person.
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
