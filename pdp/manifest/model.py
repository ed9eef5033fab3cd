"""Manifest and governance file as frozen models: what design.md names, one field each; unknown keys are errors."""

from __future__ import annotations

import pathlib
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

from pdp.documents import FieldError
from pdp.documents.validation import FROM_FILE
from pdp.json import frozen
from pdp.manifest.fields import (
    READ_CLASSES,
    ArgumentRole,
    Argv,
    Clause,
    Duration,
    EffectClass,
    FieldPath,
    FlowProfile,
    FlowRule,
    Integrity,
    Latency,
    Name,
    NotATool,
    Otherwise,
    Pattern,
    Percentile,
    RiskTier,
    Semver,
    Term,
    Text,
    Unit,
    Writes,
    matching,
)
from pdp.manifest.schema.references import self_contained
from pdp.proposal import RejectionCode

# Fields whose null says something else than their absence, or the same.
_NULLABLE: Final = frozenset(("correct", "default", "deprecation"))


class Record(BaseModel):
    """Base of every record of a manifest. Files may spell its fields in camelCase as well."""

    # Built when it is first used: a process that decides once needs few of the records.
    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="forbid",
        validate_default=False,
        populate_by_name=True,
        alias_generator=AliasGenerator(validation_alias=to_camel),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _stated(cls, value: Any, info: ValidationInfo) -> Any:
        # Read as absent, `purposes:` with nothing behind it would mean any purpose.
        if value is None and info.context is FROM_FILE and info.field_name not in _NULLABLE:
            raise FieldError("is null", "state a value, or leave the field out")
        return value


def _form(value: Any) -> str:
    return "<record>" if isinstance(value, dict | Record) else "<text>"


_Mapped = TypeVar("_Mapped", bound=Record)
_Plain = TypeVar("_Plain")
_RecordOr = Annotated[Annotated[_Mapped, Tag("<record>")] | Annotated[_Plain, Tag("<text>")], Discriminator(_form)]


class Idempotency(Record):
    """Whether a call needs an idempotency key, and for how long it is remembered.

    `key: derive(args)` lets the enforcement point derive an absent key from the arguments. A block without `required`
    requires one.
    """

    required: StrictBool = True
    key: Literal["derive(args)"] | None = None
    ttl: Duration | None = None


class CalendarWindow(Record):
    """Whole days in UTC, counted from a Monday: `days: 7` begins on Mondays."""

    days: Annotated[StrictInt, Field(ge=1, le=366)]
    from_: Literal["midnight"] = Field(alias="from")


def _counts(value: bool) -> bool:  # noqa: FBT001 - as pydantic calls it
    if not value:
        raise FieldError("must be true", "leave it out where a sum is limited")
    return value


class Limit(Record):
    """`argument`, a number, is kept at or below the subject's limit of the name `limit`.

    With `per` it is cumulative: the sum over all calls of that subject, agent, run, tool or resource, in a `window`;
    with `count`, their number. A window is sliding, or calendar days; of a run there is none. Sums are whole multiples
    of `unit`; `currency` is the argument that names it, and one sum has one.
    """

    limit: Term
    argument: Name | None = None
    count: Annotated[StrictBool, AfterValidator(_counts)] | None = None
    unit: Unit | None = None
    currency: Name | None = None
    per: Literal["subject", "agent", "run", "tool", "resource"] | None = None
    window: _RecordOr[CalendarWindow, Duration] | None = None

    @property
    def form(self) -> tuple[Any, ...]:
        """What all limits of one name share, whichever tool feeds them."""
        return self.count, self.unit, self.currency is not None, self.per, self.window


class ApprovalBlock(Record):
    """Who may approve a call, how many of them, and how long a grant holds. An empty `approvers` is nobody.

    `$subject` among them is the person whose own agent makes the call (`pdp.manifest.fields.SUBJECT`).

    `unless_within_limits`: a call that keeps all of its declared limits needs no approval.
    """

    approvers: tuple[Term, ...] | None = None
    quorum: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    expires: Duration | None = None
    unless_within_limits: StrictBool | None = None


class Provenance(Record):
    """Arguments that must be there and not empty (tool boundary document: provenance links are preserved)."""

    required: tuple[Name, ...] = ()


class Correction(Record):
    """Arguments that a violated invariant sets."""

    set: Annotated[dict[str, Any], AfterValidator(frozen)] = Field(min_length=1)


class Invariant(Record):
    """A structural rule of one tool (tool contract document).

    `check` is CEL over `call`, `state`, `config` and `plan`; it must be true. `correct` sets arguments or prunes the
    call; without it a violation rejects, with the code `rejection` (tool boundary document; absent: INVALID_PAYLOAD).
    """

    id: Name
    rule: Text
    check: Text
    correct: _RecordOr[Correction, Literal["prune"]] | None = None
    rejection: RejectionCode | None = None


class ConfigParameter(Record):
    """A value that a tool needs at run time, and how it is normalised (tool contract document)."""

    key: Name
    default: Annotated[Any, AfterValidator(frozen)] = None
    normalize: tuple[Literal["strip", "lower", "upper", "empty_to_null"], ...] = ()


class StateEffect(Record):
    """A field that a tool writes to state, and how it merges with what is there (tool contract document)."""

    key: Name
    type: Literal["object", "array", "string", "number", "integer", "boolean"] = "object"
    merge: Literal["replace", "append", "merge_dict"] = "replace"
    preserve_across_turns: StrictBool = False
    prompt_template_var: Name | None = None


class State(Record):
    """The fields of the state that a tool reads and writes."""

    reads: tuple[Name, ...] = ()
    effects: tuple[StateEffect, ...] = ()


class Safety(Record):
    """What a run can do to the world, and what it needs (tool layer document).

    `error_text`: the model sees the text of any exception, not of a `ToolError` alone.
    """

    side_effects: Literal["none", "read", "write", "external"] | None = None
    idempotent: StrictBool | None = None
    error_text: StrictBool | None = None
    requires: tuple[Term, ...] = ()


ExitCode = Annotated[StrictInt, Field(ge=0, le=255)]


class ExitCodes(Record):
    """What a program's exit codes mean. A code that is in neither list is a failure."""

    result: tuple[ExitCode, ...] = (0,)
    unavailable: tuple[ExitCode, ...] = ()


class Cli(Record):
    """How a tool of type `cli` is run: the program with its arguments, the variables it may see, its folder.

    `argv` is a template (`programs.py`). `env` names variables of the application's environment; beside them the
    program sees a fixed `PATH` and no other. `cwd` is relative to the manifest's folder. `output` says what standard
    output is (`combined`: text, with standard error where the program wrote it), `max_output` how many bytes of it at
    most.
    """

    argv: Argv = Field(min_length=1)
    env: tuple[Name, ...] = ()
    cwd: Text | None = None
    exit_codes: ExitCodes = ExitCodes()
    output: Literal["text", "json", "combined"] = "text"
    max_output: Annotated[StrictInt, Field(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    # Not a field: the manifest's digest must not depend on where the manifest is.
    _base: pathlib.Path | None = PrivateAttr(default=None)

    def below(self, folder: pathlib.Path | None) -> Cli:
        """Return it as stated by a manifest in `folder`."""
        cli = self.model_copy()
        cli._base = folder  # noqa: SLF001 - a copy of its own
        return cli

    @property
    def folder(self) -> str | None:
        """Where the program runs; None: in the application's folder."""
        return self.cwd if self.cwd is None or self._base is None else str(self._base / self.cwd)


_PROGRAM_NAME: Final = matching(
    r"[^\s/{}\0-][^\s/{}\0]*", "must be the name of a program, without a folder", "its place is stated by `path`"
)
_ABSOLUTE: Final = matching(
    r"(?s)(?!.*/\.\.(?:/|\Z))/.*", "must be an absolute path without `..`", "such as /usr/bin/grep"
)
_SUBCOMMAND: Final = matching(
    r"(?s)(?!-).*", "must not begin with `-`", "options that take an argument are listed under `options`"
)
_OPTION: Final = matching(r"(?!--\Z)-[^\s={}]+", "must be an option", "without a value, such as --regexp or -e")


class Program(Record):
    """A program that tools of type `cli` may run, and where its command line may carry an argument of the model.

    `path` absent: the first of its name in a fixed path (`programs.py`). With arguments, a command line may have the
    `subcommands` before `--`; an argument may be the value of one of the `options`, or turn it on, and stand behind
    `--` where `operands` says so.
    """

    path: Annotated[Text, _ABSOLUTE] | None = None
    subcommands: tuple[Annotated[Text, _SUBCOMMAND], ...] = ()
    options: tuple[Annotated[Text, _OPTION], ...] = ()
    operands: StrictBool = False


class Release(Record):
    """Where a tool version stands in its release (tool pattern library, 9.5)."""

    gate: Annotated[StrictStr, matching("passed", "must be `passed`", "what is not released does not load")]
    drift: Annotated[StrictStr, matching("ok", "must be `ok`", "what is not released does not load")]
    deprecation: Text | None = None


Mapping = Annotated[dict[Annotated[str, Field(min_length=1)], Any], AfterValidator(frozen)]
"""What becomes the request's resource or context: values, where strings that begin with `$` are CEL."""

MAX_ARGUMENTS: Final = 256 * 1024
"""How many bytes of canonical JSON arguments may have, unless the entry states `max_bytes`."""

Schema = Annotated[dict[str, Any], AfterValidator(frozen)]
_TYPE_NAME: Final = matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", "must be the name of a type", "such as Policyholder")


class ResultLabels(Record):
    """Where the fields of a tool's result come from. What no list names is what `integrity` says.

    `trusted`: written by the system, not by a stranger. `parties`: who took part, which anybody can become. `names`:
    what a user calls a record by. `created`: ids that a write made. `markings` are those of all of it.
    """

    integrity: Integrity | None = None
    trusted: tuple[FieldPath, ...] | None = None
    parties: tuple[FieldPath, ...] | None = None
    names: tuple[FieldPath, ...] | None = None
    created: tuple[FieldPath, ...] | None = None
    markings: tuple[Term, ...] | None = None


class FlowRules(Record):
    """What holds for calls of a run: the rules of a `profile` (absent: balanced) and `rules` beside them.

    `otherwise`: what a call that breaks one gets; absent: a STEP_UP.
    """

    profile: FlowProfile | None = None
    rules: tuple[FlowRule, ...] | None = None
    otherwise: Otherwise | None = None


class Governable(Record):
    """The fields that the policy author may state as well. Absent is None; an empty list admits nothing.

    `max_bytes`: how many bytes of canonical JSON the arguments may have; without it, 256 KiB. `roles`: what the tool
    does with an argument and all below it. `admits`: the markings of data that may leave through the tool.
    `destructive`: what it does cannot be taken back.
    """

    effect_class: EffectClass | None = None
    risk_tier: RiskTier | None = None
    scopes: tuple[Term, ...] | None = None
    markings: tuple[Term, ...] | None = None
    purposes: tuple[Term, ...] | None = None
    idempotency: Idempotency | None = None
    limits: tuple[Limit, ...] | None = None
    resource: Mapping | None = None
    context: Mapping | None = None
    approval: ApprovalBlock | None = None
    provenance: Provenance | None = None
    writes: Writes | None = None
    sensitive: tuple[Name, ...] | None = None
    max_bytes: Annotated[StrictInt, Field(ge=1, le=1024 * 1024)] | None = None
    result: ResultLabels | None = None
    roles: dict[Name, ArgumentRole] | None = None
    admits: tuple[Term, ...] | None = None
    destructive: StrictBool | None = None
    flow: FlowRules | None = None

    @property
    def is_labelled(self) -> bool:
        """Whether it says where values come from or may go."""
        return any(field is not None for field in (self.result, self.roles, self.admits, self.flow))


class ActionRules(Governable):
    """What the governance file states for one action.

    `accepts`: what its tools break of the rules of what is not a tool, and why that is accepted.
    """

    accepts: dict[NotATool, Text] | None = None


class Governance(Record):
    """The governance file: the policy author's rules by `pdp_action`, and the programs that tools may run.

    `clauses`: the clauses that every tool has to meet. If a tool misses one, the manifest does not load.
    `flow`: what holds for calls of a run, as far as the rules of an action do not state it.
    """

    actions: dict[Name, ActionRules] = Field(default_factory=dict)
    clauses: tuple[Clause, ...] = ()
    programs: dict[Annotated[str, _PROGRAM_NAME], Program] = Field(default_factory=dict)
    flow: FlowRules | None = None

    def rules_of(self, action: str) -> ActionRules | None:
        """Return what it states for an action, `flow` filled up with its own; None: nothing."""
        rules = self.actions.get(action)
        if self.flow is None:
            return rules
        stated = rules.flow.model_dump(exclude_none=True) if rules and rules.flow else {}
        flow = self.flow.model_copy(update=stated)
        return (rules or ActionRules()).model_copy(update={"flow": flow})


class DeclaredTool(Governable):
    """One tool entry as the manifest states it: what is absent is None.

    `schema_` (`schema` in files) is the arguments' JSON Schema; `$ref` leads into the schema itself alone, since
    loading has copied in what it needs of the file or of types.json. `result_schema` likewise. `commits` names, on a
    tool that stages actions, the tools that may commit them: an action's kind is one of these names.
    """

    name: Name
    id: Name | None = None
    version: Semver | None = None
    type: Literal["python", "cli"] = "python"
    cli: Cli | None = None
    description: Text | None = None
    schema_: Schema = Field(alias="schema")
    result_schema: Schema | None = None
    pdp_action: Name | None = None
    ontology_pin: Text | None = None
    pattern: Pattern | None = None
    compensation: Name | None = None
    commits: tuple[Name, ...] | None = None
    invariants: tuple[Invariant, ...] = ()
    config: tuple[ConfigParameter, ...] = ()
    state: State | None = None
    safety: Safety | None = None
    timeout: Duration | None = None
    retries: Annotated[StrictInt, Field(ge=0, le=10)] = 0
    sla: dict[Percentile, Latency] | None = None
    eval_pack: Text | None = None
    release: Release | None = None

    @property
    def action(self) -> str:
        """The action's name for the policy."""
        return self.pdp_action or self.name

    @property
    def has_effects(self) -> bool:
        """Whether a call may change something, by its effect class. Without one, it may."""
        return self.effect_class not in READ_CLASSES


class EffectiveApproval(ApprovalBlock):
    """An approval block with its defaults filled in."""

    quorum: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    expires: Duration = "PT1H"
    unless_within_limits: bool = False


class Tool(DeclaredTool):
    """One effective entry: manifest and governance merged, the stricter holding, defaults filled in.

    `program` is what the governance file states of the program of a tool of type `cli`; None: it may not run.
    `accepts`: what it accepts of the tool, and why.
    """

    program: Program | None = None
    accepts: dict[NotATool, Text] | None = None
    id: Name
    pdp_action: Name
    risk_tier: RiskTier
    scopes: tuple[Term, ...]
    limits: tuple[Limit, ...]
    idempotency: Idempotency
    approval: EffectiveApproval
    provenance: Provenance
    writes: Writes
    sensitive: tuple[Name, ...]

    @property
    def derives_key(self) -> bool:
        """Whether a call's key can be made of its arguments; that of a heavy commit names the call itself."""
        return self.idempotency.key == "derive(args)" and self.effect_class is not EffectClass.COMMIT_HIGH


class AgentPins(Record):
    """The tools, each in one version, that an agent may use."""

    id: Name
    tools: dict[Name, Semver]


class Ontology(Record):
    """The types of an ontology in one version: JSON Schemas that signatures refer to by name."""

    version: Text
    types: dict[Annotated[str, _TYPE_NAME], Schema] = Field(alias="$defs")

    @cached_property
    def copies(self) -> dict[str, Any]:
        """Its types as they stand in `$defs` of the schemas that refer to them, by their names there."""
        whole, _ = self_contained({"anyOf": [{"$ref": name} for name in self.types]}, {}, self.types)
        return dict(whole.get("$defs", {}))


class Manifest(Record):
    """A manifest file. `agents` absent: any agent; present: only the agents and versions that it names.

    `ontology`: the ontology that signatures are typed by; a file names the file that holds it. Every `ontology_pin`
    must be its version.
    """

    manifest_version: Name
    ontology: Ontology | None = None
    agents: tuple[AgentPins, ...] | None = None
    tools: tuple[DeclaredTool, ...]
