"""Rules across the fields of one entry, and across entries. Faults in `unusable` fields are not reported again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pdp.documents import nearest, shown_name
from pdp.documents.document import Path
from pdp.documents.validation import Finding, looks_like
from pdp.json import pointer_steps
from pdp.manifest.fields import READ_CLASSES, SUBJECT, EffectClass, Pattern, RiskTier, Writes
from pdp.manifest.model import AgentPins, DeclaredTool, Governable, Limit, Ontology, Tool
from pdp.manifest.schema.walk import SchemaNode, argument_schemas

PEP_CONTEXT: Final = frozenset((
    "agent", "approval", "arguments", "call_digest", "flow", "grant", "idempotency_key", "purpose", "request_id",
    "run_id", "spent", "time",
))  # fmt: skip
"""Fields of a request's context that only the enforcement point writes."""

_COMMITS: Final = frozenset((EffectClass.COMMIT_LOW, EffectClass.COMMIT_HIGH))
_CHANGES: Final = ("write", "external")
_NUMBERS: Final = frozenset(("integer", "number"))
_STRING: Final = frozenset(("string",))


def tool_findings(tool: DeclaredTool, unusable: frozenset[str], *, sound: bool) -> Iterator[Finding]:
    """Yield faults in an entry as written in the manifest. `sound` is false if its schemas have faults."""
    yield from governable_findings(tool, tool if sound else None)
    if tool.type == "cli" and tool.cli is None and "cli" not in unusable:
        yield Finding(("type",), "`type: cli` needs the field `cli`", "name the program: `cli: {argv: [...]}`")
    if tool.type != "cli" and tool.cli is not None and "type" not in unusable:
        yield Finding(
            ("cli",), "`cli` is only allowed with `type: cli`", "write `type: cli`, or remove `cli`", key=True
        )
    if tool.approval is not None and SUBJECT in (tool.approval.approvers or ()):
        message = f"`{SUBJECT}` is only allowed in the governance file, not in a manifest"
        hint = "name it in the governance file, and remove `approvers` here"
        yield Finding(("approval", "approvers"), message, hint)
    if tool.approval is not None and tool.approval.lasting is not None:
        hint = "say in the governance file how far approvals may reach"
        yield Finding(("approval", "lasting"), "`lasting` is only allowed in the governance file", hint, key=True)
    side_effects = tool.safety.side_effects if tool.safety else None
    if side_effects in _CHANGES and tool.effect_class in READ_CLASSES:
        yield Finding(
            ("safety", "side_effects"),
            f"side effects `{side_effects}` contradict effect class {tool.effect_class}",
            "declare the effect class that the tool has: stage, commit-low or commit-high",
        )
    if tool.release is not None and tool.release.deprecation is not None:
        yield Finding(
            ("release", "deprecation"),
            f"{shown_name(tool.name)} is deprecated: {tool.release.deprecation:.200}",
            "let agents pin the tool that replaces it",
            warning=True,
        )
    if tool.commits is not None and tool.pattern is not Pattern.ACTION_STAGING and "pattern" not in unusable:
        yield Finding(
            ("commits",),
            "`commits` is only allowed on a tool that stages actions",
            "write `pattern: action-staging`, or remove `commits`",
            key=True,
        )
    yield from _repeated(("invariants",), "invariant", enumerate(item.id for item in tool.invariants), "id")
    yield from _repeated(("config",), "config parameter", enumerate(item.key for item in tool.config), "key")
    effects = tool.state.effects if tool.state else ()
    yield from _repeated(("state", "effects"), "state effect", enumerate(item.key for item in effects), "key")


def governable_findings(rules: Governable, tool: DeclaredTool | None) -> Iterator[Finding]:
    """Yield faults in the fields that both files may have. Pass None as the tool if its schema is unknown or faulty."""
    for name in (rules.context or {}).keys() & PEP_CONTEXT:
        yield Finding(
            ("context", name),
            f"the context key `{name}` is set by the enforcement point",
            "choose another name",
            key=True,
        )
    limits = rules.limits or ()
    yield from _repeated(
        ("limits",), "limit", enumerate(f"{item.limit} on {item.argument or 'calls'}" for item in limits)
    )
    for at, limit in enumerate(limits):
        for fields, message, hint in _limit_faults(limit):
            yield Finding(("limits", at, *fields), f"limit {shown_name(limit.limit)} {message}", hint, key=bool(fields))
    if tool is None:
        return
    arguments = argument_schemas(tool.schema_)
    yield from _limited_findings(limits, arguments)
    for at, name in enumerate(rules.provenance.required if rules.provenance else ()):
        yield from argument_findings(name, arguments, ("provenance", "required", at))
    for at, name in enumerate(rules.sensitive or ()):
        yield from argument_findings(name, arguments, ("sensitive", at))
    for name in rules.roles or ():
        argument = pointer_steps(name)[0] if name.startswith("/") else name
        yield from argument_findings(argument, arguments, ("roles", name), key=True)


def _limited_findings(limits: Sequence[Limit], arguments: Mapping[str, SchemaNode]) -> Iterator[Finding]:
    for at, limit in enumerate(limits):
        for field, name, kinds, noun, hint in (
            ("argument", limit.argument, _NUMBERS, "a number", "name an argument of type number or integer"),
            ("currency", limit.currency, _STRING, "a text", "name the string argument with the currency"),
        ):
            if name is None:
                continue
            yield from argument_findings(name, arguments, ("limits", at, field))
            schema = arguments.get(name)
            if schema is not None and schema.kinds is not None and not schema.kinds <= kinds:
                fault = f"limit on argument {shown_name(name)}, which is not declared as {noun}"
                yield Finding(("limits", at, field), fault, hint)


def _limit_faults(limit: Limit) -> Iterator[tuple[tuple[str, ...], str, str]]:
    stated = {name for name in ("count", "unit", "currency", "window") if getattr(limit, name) is not None}
    if limit.count is None and limit.argument is None:
        yield (), "limits nothing", "name the argument whose total the limit bounds, or write `count: true`"
    if limit.count and limit.argument is not None:
        yield ("argument",), "counts calls, so it cannot have an `argument`", "remove `argument` or `count`"
    for name in sorted(stated & {"unit", "currency"} if limit.count else ()):
        yield (name,), f"counts calls, so it cannot have a {name}", f"remove `{name}` or `count`"
    if limit.per is None and stated:
        yield (
            (),
            f"has {', '.join(sorted(stated))}, but does not say whose calls count",
            "add `per`, such as `per: subject`",
        )
    if limit.per == "run" and limit.window is not None:
        yield ("window",), "counts per run, so it needs no window", "remove `window`, or count per subject or agent"
    if limit.per not in (None, "run") and limit.window is None:
        yield ("per",), "needs a window", "state a window: `PT1H` slides, `{days: 1, from: midnight}` is a day"


def form_findings(entry: Tool, forms: dict[str, tuple[str, tuple[Any, ...]]]) -> Iterator[Finding]:
    """Yield limits that differ from an earlier limit with the same name. `forms` collects the limits seen so far."""
    for limit in entry.limits:
        name, form = forms.setdefault(limit.limit, (entry.name, limit.form))
        if form != limit.form:
            yield Finding(
                ("limits",),
                f"limit {shown_name(limit.limit)} differs from the limit of this name in tool {shown_name(name)}",
                "state the same count, unit, currency, per and window, or use another name",
            )


def says_it_changes(entry: Tool) -> bool:
    """Return whether the side effects or the effect class of an entry declare that a call changes something."""
    effects = entry.safety.side_effects if entry.safety else None
    return effects in _CHANGES or (entry.effect_class is not None and entry.has_effects)


def entry_findings(entry: Tool, *, tier_stated: bool) -> Iterator[Finding]:
    """Yield faults in an effective entry. `tier_stated` is false if the risk tier is only a default."""
    effects = entry.safety.side_effects if entry.safety else None
    harmless = entry.effect_class in READ_CLASSES or (entry.effect_class is None and effects in ("none", "read"))
    risky = says_it_changes(entry) or (tier_stated and not harmless)
    if entry.risk_tier is RiskTier.HIGH and risky and not entry.idempotency.required:
        yield Finding(
            ("risk_tier",),
            "a tool with a high risk tier needs idempotency",
            "write `idempotency: {required: true}`; or declare an effect class without side effects",
        )
    if entry.effect_class is EffectClass.COMMIT_HIGH and entry.idempotency.key is not None:
        yield Finding(
            ("idempotency", "key"),
            f"with `key: derive(args)` on {entry.effect_class}, a payment with equal arguments counts as a repeat",
            "remove `key` and keep `required: true`: the session states the key of each call (`idempotency_key`)",
        )
    if entry.effect_class is EffectClass.COMMIT_HIGH and SUBJECT in (entry.approval.approvers or ()):
        message = f"`{SUBJECT}` cannot approve {entry.effect_class}: another person must"
        yield Finding(("approval", "approvers"), message, f"name a role in place of `{SUBJECT}`")
    if entry.resource is not None and "type" not in entry.resource:
        yield Finding(("resource",), "the resource has no `type`", "map `type`, or leave the resource out")
    if entry.writes is Writes.PROPOSAL and not entry.provenance.required:
        yield Finding(
            ("writes",),
            "the tool writes a proposal, but does not name its sources",
            "name the arguments with the sources: `provenance: {required: [source_ids]}`",
        )
    if entry.effect_class is None and not entry.scopes:
        yield Finding(
            ("name",),
            f"nothing governs action {shown_name(entry.pdp_action)}: every call is denied",
            "state scopes or an effect class, here or in the governance file",
            warning=True,
        )
    if entry.effect_class in _COMMITS and entry.compensation is None:
        yield Finding(
            ("name",),
            f"{entry.effect_class} without `compensation`",
            "name the tool that undoes the effect",
            warning=True,
        )


def manifest_findings(
    tools: Mapping[int, DeclaredTool], agents: Sequence[AgentPins], ontology: Ontology | None
) -> Iterator[Finding]:
    """Yield faults across all readable `tools`, which are keyed by position, and in the versions that agents pin."""
    yield from _repeated(("tools",), "tool", ((at, tool.name) for at, tool in tools.items()), "name")
    by_name = {tool.name: tool for tool in tools.values()}
    for at, tool in tools.items():
        if tool.compensation is not None and tool.compensation not in by_name:
            yield Finding(
                ("tools", at, "compensation"),
                f"compensation {shown_name(tool.compensation)} is not a tool of this manifest",
                nearest(tool.compensation, by_name),
                warning=not looks_like(tool.compensation, by_name.keys() - {tool.name}),
            )
        if ontology is not None and tool.ontology_pin not in (None, ontology.version):
            yield Finding(
                ("tools", at, "ontology_pin"),
                f"{shown_name(tool.name)} must pin the ontology of the manifest, {shown_name(ontology.version)}",
                f"pin {ontology.version}, or move the tool to another manifest",
            )
        yield from _commit_findings(tool, at, by_name)
    yield from _repeated(("agents",), "agent", enumerate(agent.id for agent in agents), "id")
    for at, agent in enumerate(agents):
        for name, version in agent.tools.items():
            path: Path = ("agents", at, "tools", name)
            if name not in by_name:
                yield Finding(
                    path, f"agent pins {shown_name(name)}, which is not declared", nearest(name, by_name), key=True
                )
            elif by_name[name].version != version:
                has = by_name[name].version
                yield Finding(
                    path,
                    f"agent pins version {version} of {shown_name(name)}, which has "
                    + (f"version {has}" if has else "no version"),
                    f"pin {has}" if has else "state the tool's `version`",
                )


def _commit_findings(tool: DeclaredTool, position: int, by_name: Mapping[str, DeclaredTool]) -> Iterator[Finding]:
    for at, name in enumerate(tool.commits or ()):
        committing = by_name.get(name)
        if committing is None:
            message, hint = "is not a tool of this manifest", nearest(name, by_name)
        elif committing.pattern is not None:
            message, hint = f"has pattern {committing.pattern}, so it does not commit", "name a tool without a pattern"
        else:
            continue
        unknown = committing is None and not looks_like(name, by_name.keys() - {tool.name})
        yield Finding(("tools", position, "commits", at), f"{shown_name(name)} {message}", hint, warning=unknown)


def argument_findings(
    name: str, arguments: Mapping[str, SchemaNode], path: Path, *, key: bool = False
) -> Iterator[Finding]:
    """Yield a finding at `path` if the schema has no argument called `name`."""
    if name not in arguments:
        hint = nearest(name, arguments) or (f"known: {', '.join(arguments)}" if arguments else "there are no arguments")
        yield Finding(path, f"{shown_name(name)} is not an argument of the schema", hint, key=key)


_NAMED: Final = "; `name` overrides the end of the `id`"


def _repeated(base: Path, subject: str, names: Iterable[tuple[int, str]], *field: str) -> Iterator[Finding]:
    """Yield a finding for each repeated name. Names come with their index in the list at `base`."""
    first: dict[str, int] = {}
    for at, name in names:
        if name in first:
            message = f"{subject} {shown_name(name)} is declared twice, first as number {first[name] + 1}"
            yield Finding((*base, at, *field), message, f"rename or remove one{_NAMED if subject == 'tool' else ''}")
        first.setdefault(name, at)
