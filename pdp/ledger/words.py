"""Where the values of a call came from, in words: for who is asked to approve it, and for the model that is denied.

Names of arguments and tools, ids of calls and markings are shown, and no value. Whatever is given, a text comes out.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_MOST: Final = 5
_LONGEST: Final = 80

_ORIGINS: Final = {
    "prompt": ("you", "is in your own words"),
    "fact": ("the application", "is a fact that the application states"),
    "endorsed": ("an approval", "was approved in this run"),
    "created": ("{calls}", "was made by {calls}"),
    "named": ("{calls}", "belongs to a record that you named, in the result of {calls}"),
    "trusted": ("{calls}", "was written by the system into the result of {calls}"),
    "party": ("{calls}", "took part in what {calls} returned, and anybody can take part"),
    "untrusted": ("{calls}", "was read in the result of {calls}, and you did not name it"),
    "model": ("the model", "comes from the model alone: neither you nor any result has it"),
}
"""By source, the best first: from whom a part of a value is, and where a whole one came from."""
_NOT_REMEMBERED: Final = ("the model", "may be a stranger's, and you did not name it")
_UNKNOWN: Final = ("the model", "has no known source")

_VALUE: Final = "The value of {name} {origin}."
_TAINTED: Final = "The run has read what strangers wrote, in results of {strangers}; "
_SENTENCES: Final = {
    "flow.address_untrusted": _VALUE,
    "flow.target_untrusted": _VALUE,
    "flow.value_untrusted": _VALUE,
    "flow.link_untrusted": "A link, mail address or account in {name} {origin}.",
    "flow.egress": "The run has read {data} data, and where it would go, {name}, {origin}.",
    "flow.address_composed": "Nobody wrote {name} as a whole: {host}, and the rest is the model's.",
    "flow.destructive": f"{_TAINTED}you did not ask for this call, or did not name each of its targets.",
    "flow.aimless": f"{_TAINTED}the call is aimed at nothing, and you did not ask for it.",
    "flow.not_anchored": f"{_TAINTED}the call holds none of your words.",
    "flow.off_plan": f"{_TAINTED}the plan that was made before has only: {{plan}}.",
}


def explanation(code: str, details: Mapping[str, Any], flow: Mapping[str, Any]) -> str | None:
    """Return where a value came from that a finding of the concern `flow` is about; None for other codes.

    `flow` is `context.flow` of the request, `details` are the finding's.
    """
    if code not in _SENTENCES:
        return None
    whose, origin = _origin_of(details)
    return _SENTENCES[code].format(
        name=_name_of(details),
        origin=origin,
        host="neither you nor any result has its host" if whose == "the model" else f"its host is known from {whose}",
        data=_listed(details.get("markings")) or "marked",
        strangers=_listed(flow.get("untrusted")) or "a tool",
        plan=_listed(flow.get("plan")) or "empty",
    )


def origins(flow: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what `context.flow` says of a run and of each labelled argument, in lines; nothing where it is absent."""
    if flow is None:
        return
    tools, markings = _listed(flow.get("untrusted")), _listed(flow.get("markings"))
    yield (
        f"the run has read what strangers wrote: {tools}" if tools else "the run has read nothing that strangers wrote"
    )
    if markings:
        yield f"the run has read {markings} data"
    for argument in flow.get("arguments") or ():
        yield f"{_name_of(argument)} ({argument.get('role')}) {_origin_of(argument)[1]}"
        yield from (f"a link in {_name_of(argument)} {_origin_of(link)[1]}" for link in argument.get("links") or ())


def _origin_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """From whom a part of a value is, and where a whole one came from."""
    sources = item.get("sources")
    listed = sources if isinstance(sources, list | tuple) else ()
    calls = _calls_of(item)
    if not item.get("from") and {"model", "untrusted"} == set(map(str, listed)):
        return _NOT_REMEMBERED
    whose, origin = next((texts for source, texts in _ORIGINS.items() if source in listed), _UNKNOWN)
    return whose.format(calls=calls), origin.format(calls=calls)


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
