"""Reasons in a person's words: one line that says why, with the numbers that decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.decision import Reason

_LONGEST: Final = 200


def in_words(reason: Reason, request: Mapping[str, Any]) -> str:
    """Return a reason as a clause that can stand after "because".

    Args:
        reason: of a decision.
        request: what the policy was asked, plain JSON.
    """
    worded = _WORDED.get(reason.code)
    if worded is not None:
        try:
            return worded(reason.details, request)
        except (KeyError, TypeError, AttributeError, ValueError):
            pass  # details of another release's policy: the general words say what is known
    return _generally(reason)


def readable(value: Any) -> str:
    """Return a JSON value for people: thousands apart, lists as words, texts without quotes, at most 200 letters."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:,}"
    if isinstance(value, str):
        text = value or '""'
    elif isinstance(value, list):
        text = ", ".join(map(readable, value)) or "empty"
    else:
        text = canonical(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _generally(reason: Reason) -> str:
    message = reason.message.strip().rstrip(".") or reason.code
    # A name in capitals keeps them.
    message = message[0].lower() + message[1:] if message[1:2].islower() else message
    shown = "; ".join(
        f"{name} {readable(value)}" for name, value in sorted(reason.details.items()) if not isinstance(value, dict)
    )
    return f"{message} ({shown})" if shown else message


def _exceeded(details: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    holder: Any = request["subject"]["properties"]
    limits = [holder.get("limits", {}).get(details["limit"])]
    # Where an agent acts, its own limit holds as well.
    while isinstance(holder := holder.get("act"), dict):
        if "limits" in holder:
            limits.append(holder["limits"].get(details["limit"]))
    amount = f"{details['argument']} {readable(details['value'])}"
    if None in limits:
        return f"{amount} needs the limit {details['limit']}, and none is given"
    return f"{amount} is above your automatic limit {readable(min(limits))}"


def _approval(details: Mapping[str, Any], _: Mapping[str, Any]) -> str:
    approvers = details["approval"].get("approvers")
    return f"a person has to approve it{f': {readable(approvers)}' if approvers else ''}"


_WORDED: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]]] = {
    "limits.exceeded": _exceeded,
    "limits.invalid": lambda details, request: (
        f"{details['argument']} {readable(request['context']['arguments'].get(details['argument']))} "
        "is not a number of at least zero"
    ),
    "approvals.required": _approval,
    "scopes.missing": lambda details, _: f"you lack {_noun('the scope', details['missing'])}",
    "markings.not_cleared": lambda details, _: f"you are not cleared for {_noun('the marking', details['missing'])}",
    "markings.not_allowed": lambda details, _: (
        f"the data carries {_noun('the marking', details['markings'])}, and the tool may not touch that"
    ),
    "purposes.not_allowed": lambda details, _: f"the tool is not for the purpose {readable(details['purpose'])}",
    "delegation.exceeds_agent": lambda details, _: (
        f"{readable(details['agent'])}, who acts for you, lacks the {readable(details['exceeded'])} that it needs"
    ),
    "documents.not_entitled": lambda details, _: (
        f"you are not entitled to the {readable(details['type'])} {readable(details['id'])}"
    ),
    "provenance.missing": lambda details, _: f"these name no sources: {readable(details['missing'])}",
}


def _noun(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {readable(names)}"
