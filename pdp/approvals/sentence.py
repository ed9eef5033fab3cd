"""Texts about an approval, for people: one sentence, and all fields. Values come from models; print them escaped."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pdp.json import canonical, pointer_steps
from pdp.ledger.words import origins
from pdp.manifest.fields import NAMED_BY_PEOPLE, SUBJECT, ArgumentRole
from pdp.session import Person
from pdp.stores.approvals import Approval, ApprovalState, without_middle

_OF_A_CLIENT: Final = {"tool", "input", "target"}  # The arguments of a coding agent's call, see `pdp hook`.
_LONGEST_OBJECT: Final = 160
_LONGEST_VALUE: Final = 60
_MOST_VALUES: Final = 8


def act(approval: Approval) -> str:
    """Return what the call would do: the tool, what it acts on, and its other arguments, each cut if it is long."""
    objects, rest = _values(approval)
    text = ", ".join(without_middle(_json(value), _LONGEST_OBJECT) for value in objects)
    others = [f"{name} {without_middle(_json(value), _LONGEST_VALUE)}" for name, value in rest[:_MOST_VALUES]]
    if len(rest) > len(others):
        others.append(f"{len(rest) - len(others)} more")
    text += (" with " if text and others else "") + ", ".join(others)
    return f"{approval.tool}: {text or 'no arguments'}"


def sentence(approval: Approval) -> str:
    """Return a sentence about the call, the requester, and how long the approval is open.

    Examples:
        >>> from pathlib import Path
        >>> from pdp import Approvals, Pep, Session
        >>> session = Session.model_validate_json(Path("session.json").read_text())
        >>> wire = {"beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "a", "reference": "INV-1"}
        >>> with Pep.from_project("pdp.yaml", approvals=Approvals()) as pep:
        ...     approval = pep.decide({"tool": "initiate_wire", "arguments": wire}, session, hold=True).approval
        >>> sentence(approval)
        'initiate_wire: "bene-acme-441" with source_account "a", amount 47500, reference "INV-1" - asked by ...'
    """
    agent = f" through {approval.agent}" if approval.agent else ""
    now, opened, expires = datetime.now(UTC), *map(datetime.fromisoformat, (approval.opened_at, approval.expires_at))
    standing = approval.standing
    end: str = standing
    if standing in (ApprovalState.PENDING, ApprovalState.GRANTED):
        end = f"{_duration((expires - now).total_seconds())} left"
        end = end if standing is ApprovalState.PENDING else f"{standing}, {end}"
    elif approval.closed_by is not None:
        end += f" by {person_text(approval.closed_by)}"
    asked = f"asked by {person_text(approval.requesters[0])}{agent}"
    return f"{act(approval)} - {asked}, {_duration((now - opened).total_seconds())} ago, {end}"


def fields(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each field of an approval. Arguments are whole, because they are approved."""
    context = approval.request["context"]
    yield "tool", " ".join(text for text in (approval.tool, approval.tool_version) if text)
    for name, value in context["arguments"].items():
        yield "argument", f"{name} = {_json(value)}"
    for name, value in (approval.task or {}).items():
        yield "task", f"{name} = {_json(value)}"
    yield from (("origin", line) for line in origins(context.get("flow")))
    if context.get("purpose"):
        yield "purpose", context["purpose"]
    if approval.run_id:
        yield "run", approval.run_id
    yield "asked by", ", ".join(map(person_text, approval.requesters))
    yield "reasons", ", ".join(approval.reasons)
    own = f"{SUBJECT} ({person_text(approval.requesters[0])}, by another token)"
    yield "approvers", ", ".join(own if role == SUBJECT else role for role in approval.approvers) or "nobody"
    yield "quorum", f"{len(approval.grants)} of {approval.quorum} granted"
    for granted in approval.grants:
        yield "granted", f"by {person_text(granted.person)} as {', '.join(granted.roles)} at {granted.at}"
    if approval.lasting is not None:
        yield "may last", f"{' or '.join(approval.lasting.reaches)}, for at most {_duration(approval.lasting.seconds)}"
        yield from (("limited to", f"{name} = {text}") for name, text in approval.lasting.about.items())
    yield "opened", approval.opened_at
    yield "expires", approval.expires_at
    if approval.url is not None:
        yield "page", approval.url
    if approval.closed_at is not None:
        by = f" by {person_text(approval.closed_by)}" if approval.closed_by else ""
        yield "closed", f"{approval.closed_at}{by}{f': {approval.why}' if approval.why else ''}"


def _values(approval: Approval) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Return what the call acts on, and its other arguments by name: amounts first, then the shortest."""
    request = approval.request
    context, resource = request["context"], request["resource"]
    arguments: dict[str, Any] = context["arguments"]
    roles = {
        step: each.get("role")
        for each in (context.get("flow") or {}).get("arguments") or ()
        for step in pointer_steps(each.get("path") or "")[:1]
    }
    # Without roles, the resource is the object of the call. Its type is `tool` if the manifest maps no resource.
    name_of_resource = None if resource["type"] == "tool" else resource["id"]
    first: list[tuple[str, Any]] = []
    objects = [arguments[name] for name in arguments if roles.get(name) in NAMED_BY_PEOPLE]
    if arguments.keys() - {"shape", "folder"} == _OF_A_CLIENT and isinstance(arguments["input"], dict):
        first = [(name, arguments[name]) for name in ("tool", "folder", "shape") if name in arguments]
        objects, arguments = [arguments["target"]], arguments["input"]
    elif not objects and name_of_resource is not None:
        objects = [name_of_resource]
    rest = [(name, value) for name, value in arguments.items() if value not in objects]
    rest.sort(key=lambda item: (roles.get(item[0]) != ArgumentRole.VALUE, len(_json(item[1]))))
    return objects, first + rest


def _json(value: Any) -> str:
    return canonical(value).decode()


def in_largest_unit(seconds: float) -> tuple[int, str]:
    """Return a duration rounded down in its largest unit: days, h, min or s. A negative duration is 0 s.

    Examples:
        >>> in_largest_unit(2465)
        (41, 'min')
    """
    for unit, least, size in (("days", 172_800, 86_400), ("h", 7_200, 3_600), ("min", 60, 60)):
        if seconds >= least:
            return int(seconds // size), unit
    return max(int(seconds), 0), "s"


def _duration(seconds: float) -> str:
    number, unit = in_largest_unit(seconds)
    return f"{number} {unit}"


def person_text(person: Person) -> str:
    """Return the name of a person, with its issuer if it has one."""
    return person.sub if person.iss is None else f"{person.sub} ({person.iss})"
