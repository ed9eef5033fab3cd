"""The rules of `approval.lasting`, which says how far people may let an approval of a tool's calls reach."""

from collections.abc import Iterator

from pdp.documents import shown_name
from pdp.documents.validation import Finding
from pdp.manifest.fields import NAMED_BY_PEOPLE, ArgumentRole, EffectClass, NotATool
from pdp.manifest.model import Tool
from pdp.manifest.rules.rules import argument_findings
from pdp.manifest.schema.walk import SchemaNode, argument_schemas

_BOUNDED_KINDS = frozenset(("boolean", "integer", "null", "number"))
_BOUNDS = frozenset(("maxItems", "maxLength", "maxProperties"))


def lasting_findings(entry: Tool, *, sound: bool) -> Iterator[Finding]:
    """Yield faults in the `approval.lasting` of an effective entry. `sound` is false if its schemas have faults."""
    lasting, at = entry.approval.lasting, ("approval", "lasting")
    if lasting is None:
        return
    if entry.effect_class in (None, EffectClass.COMMIT_HIGH):
        # The policy treats an entry without an effect class like commit-high, so a grant would let no call through.
        what = entry.effect_class or "an entry without `effect_class`"
        yield Finding(at, f"{what} needs an approval of each call", "remove `lasting`, or state a lower `effect_class`")
    if not sound:
        return
    arguments = argument_schemas(entry.schema_)
    roles = {name.removeprefix("/"): role for name, role in (entry.roles or {}).items()}
    by = tuple(pointer[1:] for pointer in lasting.by or ())
    if not by and not any(role in NAMED_BY_PEOPLE for role in roles.values()):
        hint = "name arguments in `by`, or give an argument the role destination, object, url or address"
        yield Finding(at, "no argument limits the grant", hint)
    for position, name in enumerate(by):
        place = (*at, "by", position)
        yield from argument_findings(name, arguments, place)
        if name in arguments and not _is_bounded(arguments[name]):
            yield Finding(
                place, f"the schema does not bound {shown_name(name)}", "add `maxLength` or `enum` to its schema"
            )
    # The author of an untyped entry has written down why its arguments need no types.
    untyped = NotATool.UNTYPED in (entry.accepts or {})
    limited = {limit.argument for limit in entry.limits if limit.per is None}
    for position, pointer in enumerate(lasting.free):
        name, place = pointer[1:], (*at, "free", position)
        yield from argument_findings(name, arguments, place)
        if name in by or roles.get(name) in NAMED_BY_PEOPLE:
            yield Finding(place, f"{shown_name(name)} limits the grant, so it cannot be free", "remove one of the two")
        elif name in arguments and name not in limited and not untyped and roles.get(name) is not ArgumentRole.BODY:
            hint = "a free number needs a limit (`limits`), and a free text the role `body`"
            yield Finding(place, f"nothing limits {shown_name(name)} if it is free", hint)


def _is_bounded(schema: SchemaNode) -> bool:
    return all(
        each.values is not None or bool(each.kinds and (each.kinds <= _BOUNDED_KINDS or _BOUNDS & each.rest.keys()))
        for each in schema.alternatives
    )
