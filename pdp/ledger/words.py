"""Sentences that tell approvers and the model where the values of a call came from.

The sentences contain argument and tool names, call ids and markings, but no values. Malformed details raise no errors.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_MOST: Final = 5
_LONGEST: Final = 80

_ORIGINS: Final = {
    "prompt": ("you", "is in your own words"),
    "fact": ("the application", "is a fact that the application states"),
    "endorsed": ("an approval", "was approved in this run"),
    "created": ("{calls}", "was created by {calls}"),
    "named": ("{calls}", "belongs to a record that you named, in the result of {calls}"),
    "trusted": ("{calls}", "was written by the system into the result of {calls}"),
    "party": ("{calls}", "is a participant in the result of {calls}, and anyone can become one"),
    "untrusted": ("{calls}", "was read in the result of {calls}, and you did not name it"),
    "model": ("the model", "comes only from the model: neither you nor any result contains it"),
}
"""For each source, best first: the author of a part of a value, and a phrase for the origin of a whole value."""
_VOUCHED: Final = {"prompt", "fact", "endorsed", "created", "named", "trusted"}
_NOT_REMEMBERED: Final = ("the model", "may be untrusted, and you did not name it")
_ON_APPROVED_SITE: Final = (
    "an approval",
    "is on a site that was approved in this run, and the model composed the rest",
)
_UNKNOWN: Final = ("the model", "has no known source")

_VALUE: Final = "The value of {name} {origin}."
_TAINTED: Final = "The run has read untrusted text in results of {tools}; "
_SENTENCES: Final = {
    "flow.address_untrusted": _VALUE,
    "flow.target_untrusted": _VALUE,
    "flow.value_untrusted": _VALUE,
    "flow.link_untrusted": "A link, mail address or account in {name} {origin}.",
    "flow.egress": "The run has read {data} data, and the call's destination {name} {origin}.",
    "flow.address_composed": "The model composed {name}: {host}.",
    "flow.destructive": f"{_TAINTED}you did not ask for this call or did not name each of its targets.",
    "flow.aimless": f"{_TAINTED}the call has no target, and you did not ask for it.",
    "flow.not_anchored": f"{_TAINTED}the call contains none of your words.",
    "flow.off_plan": f"{_TAINTED}the plan made before this contains only: {{plan}}.",
}


def explanation(code: str, details: Mapping[str, Any], flow: Mapping[str, Any]) -> str | None:
    """Return a sentence about a reason code `flow.*`, or None for other codes. `flow` is `context.flow`."""
    if code not in _SENTENCES:
        return None
    author, origin = _origin_of(details)
    return _SENTENCES[code].format(
        name=_name_of(details),
        origin=origin,
        host="neither you nor any result contains its host"
        if author == "the model"
        else f"its host comes from {author}, the rest from the model",
        data=_listed(details.get("markings")) or "marked",
        tools=_listed(flow.get("untrusted")) or "a tool",
        plan=_listed(flow.get("plan")) or "empty",
    )


def origins(flow: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield lines about the data that a run has read, and about the origin of each labelled argument of a call.

    Args:
        flow: `context.flow` of the request, such as `Evaluation.flow`; None yields no lines.

    Examples:
        >>> list(origins({"untrusted": ["read_mail"]}))
        ['...read_mail...']
    """
    if flow is None:
        return
    tools, markings = _listed(flow.get("untrusted")), _listed(flow.get("markings"))
    yield (f"the run has read untrusted text from: {tools}" if tools else "the run has read no untrusted text")
    if markings:
        yield f"the run has read {markings} data"
    for argument in flow.get("arguments") or ():
        yield f"{_name_of(argument)} ({argument.get('role')}) {_origin_of(argument)[1]}"
        yield from (f"a link in {_name_of(argument)} {_origin_of(link)[1]}" for link in argument.get("links") or ())


def origin(argument: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a phrase for the origin of an argument's value, and whether people, facts or the system vouch for it.

    Args:
        argument: an entry of `arguments` in `context.flow` of the request.

    Examples:
        >>> origin({"path": "/to", "sources": ["model"]})
        ('comes only from the model: neither you nor any result contains it', False)
    """
    sources = argument.get("sources")
    listed = set(map(str, sources)) if isinstance(sources, list | tuple) else set()
    return _origin_of(argument)[1], bool(listed) and listed <= _VOUCHED


def _origin_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return who wrote a value or a part of it, and a phrase for the origin of the whole value."""
    sources = item.get("sources")
    listed = sources if isinstance(sources, list | tuple) else ()
    calls = _calls_of(item)
    if not item.get("from") and {"model", "untrusted"} == set(map(str, listed)):
        return _NOT_REMEMBERED
    if "model" in listed and "endorsed" in listed:
        return _ON_APPROVED_SITE
    author, origin = next((texts for source, texts in _ORIGINS.items() if source in listed), _UNKNOWN)
    return author.format(calls=calls), origin.format(calls=calls)


def _calls_of(item: Mapping[str, Any]) -> str:
    calls = item.get("from")
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list | tuple) else []
    shown = [f"{_plain(call.get('tool'))} (call {_plain(call.get('call'))})" for call in calls[:_MOST]]
    return " and ".join(shown) or "a tool"


def _name_of(item: Mapping[str, Any]) -> str:
    path = item.get("argument", item.get("path"))
    if not isinstance(path, str) or not path:
        return "an argument that is not listed"
    return f"`{_plain(path.removeprefix('/').replace('~1', '/').replace('~0', '~'))}`"


def _listed(names: Any) -> str:
    return ", ".join(map(_plain, names[:_MOST])) if isinstance(names, list | tuple) else ""


def _plain(text: Any) -> str:
    shown = str(text)[:_LONGEST]
    return shown if shown.isprintable() else ascii(shown)[1:-1]
