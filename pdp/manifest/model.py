"""Frozen models of manifest and governance file. Unknown keys are errors."""

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
    ArgumentPath,
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

_ArgumentPointer = Annotated[StrictStr, Field(pattern=r"^/[^/~]{1,128}$")]

# In these fields null is a valid value, so it does not count as absent.
NULLABLE: Final = frozenset(("correct", "default", "deprecation"))


class Record(BaseModel):
    """Base class of the models of manifest and governance file. In files, field names may also be in camelCase."""

    # Validators are built on first use, because a process that makes a single decision needs few of them.
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
        # Null is rejected: if it meant absent, an empty `purposes:` would allow any purpose.
        if value is None and info.context is FROM_FILE and info.field_name not in NULLABLE:
            raise FieldError("is null", "state a value, or leave the field out")
        return value


def _form(value: Any) -> str:
    return "<record>" if isinstance(value, dict | Record) else "<text>"


_Mapped = TypeVar("_Mapped", bound=Record)
_Plain = TypeVar("_Plain")
_RecordOr = Annotated[Annotated[_Mapped, Tag("<record>")] | Annotated[_Plain, Tag("<text>")], Discriminator(_form)]


class Idempotency(Record):
    """Whether calls need an idempotency key, how long keys are remembered, and how a missing key is derived."""

    required: StrictBool = True
    key: Literal["derive(args)"] | None = None
    ttl: Duration | None = None


class CalendarWindow(Record):
    """A window of `days` whole UTC days. Windows follow each other from a Monday, so 7-day windows start on Mondays."""

    days: Annotated[StrictInt, Field(ge=1, le=366)]
    from_: Literal["midnight"] = Field(alias="from")


def _counts(value: bool) -> bool:  # noqa: FBT001 - pydantic passes it by position
    if not value:
        raise FieldError("must be true", "remove `count` to limit the total of an argument")
    return value


class Limit(Record):
    """A limit on a number argument; with `per`, on the sum of the argument or the `count` of calls in a `window`.

    The maximum is the value that the subject's limits have under the name `limit`. Amounts are multiples of `unit`.
    `currency` names the argument with the currency, because sums are kept per currency. `per: run` allows no window.
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
        """The properties that must be equal in all limits with the same name."""
        return self.count, self.unit, self.currency is not None, self.per, self.window


class Lasting(Record):
    """How far people may let an approval reach beyond its one call. Without it, an approval is for one call.

    `by` and `free` contain JSON Pointers to arguments, such as `/recipient`. `by` names the arguments that a person is
    shown as the limits of the grant. `free` names the arguments that may differ between the calls. All other arguments
    must be equal. `max` bounds the life of a grant, and `uses` its calls.
    """

    reaches: tuple[Literal["run", "until"], ...] = Field(min_length=1)
    by: tuple[_ArgumentPointer, ...] | None = None
    free: tuple[_ArgumentPointer, ...] = ()
    max: Duration = "P1D"
    uses: Annotated[StrictInt, Field(ge=1, le=10_000)] = 100


class ApprovalBlock(Record):
    """Who may approve a call, how many approvers the call needs, and when a grant expires.

    If the list `approvers` is empty, no one can approve. `$subject` is the person whose agent makes the call.
    """

    approvers: tuple[Term, ...] | None = None
    quorum: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    expires: Duration | None = None
    unless_within_limits: StrictBool | None = None
    lasting: Lasting | None = None


class Provenance(Record):
    """Arguments that name the sources of a result, and must not be empty (tool boundary document, provenance)."""

    required: tuple[Name, ...] = ()


class Correction(Record):
    """The argument values that are set if a call violates an invariant."""

    set: Annotated[dict[str, Any], AfterValidator(frozen)] = Field(min_length=1)


class Invariant(Record):
    """A structural rule of a tool (tool contract document). `check` is a CEL expression that must be true.

    If `check` is false, `correct` changes the arguments or drops the call. Without `correct`, the call is rejected.
    """

    id: Name
    rule: Text
    check: Text
    correct: _RecordOr[Correction, Literal["prune"]] | None = None
    rejection: RejectionCode | None = None


class ConfigParameter(Record):
    """A configuration value that a tool needs at run time, and how its text is normalized (tool contract document)."""

    key: Name
    default: Annotated[Any, AfterValidator(frozen)] = None
    normalize: tuple[Literal["strip", "lower", "upper", "empty_to_null"], ...] = ()


class StateEffect(Record):
    """A state field that a tool writes, and how a new value is merged with the old value (tool contract document)."""

    key: Name
    type: Literal["object", "array", "string", "number", "integer", "boolean"] = "object"
    merge: Literal["replace", "append", "merge_dict"] = "replace"
    preserve_across_turns: StrictBool = False
    prompt_template_var: Name | None = None


class State(Record):
    """The state fields that a tool reads and writes."""

    reads: tuple[Name, ...] = ()
    effects: tuple[StateEffect, ...] = ()


class Safety(Record):
    """Side effects and requirements of a tool (tool layer document). With `error_text`, the model sees exceptions."""

    side_effects: Literal["none", "read", "write", "external"] | None = None
    idempotent: StrictBool | None = None
    error_text: StrictBool | None = None
    requires: tuple[Term, ...] = ()


ExitCode = Annotated[StrictInt, Field(ge=0, le=255)]


class ExitCodes(Record):
    """The meaning of a program's exit codes. A code in none of the lists is a failure."""

    result: tuple[ExitCode, ...] = (0,)
    unavailable: tuple[ExitCode, ...] = ()


class Cli(Record):
    """How a tool of type `cli` runs: the command line, environment variables and working folder of its program.

    `argv` is a template (see `programs.py`). The program gets the environment variables in `env`, and a fixed `PATH`.
    `cwd` is relative to the manifest's folder. `combined` output includes standard error; `max_output` is in bytes.
    """

    argv: Argv = Field(min_length=1)
    env: tuple[Name, ...] = ()
    cwd: Text | None = None
    exit_codes: ExitCodes = ExitCodes()
    output: Literal["text", "json", "combined"] = "text"
    max_output: Annotated[StrictInt, Field(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    # The folder is not a field, because the manifest's digest must not depend on the file's location.
    _base: pathlib.Path | None = PrivateAttr(default=None)

    def below(self, folder: pathlib.Path | None) -> Cli:
        """Return a copy that resolves a relative `cwd` against `folder`, the folder of the manifest."""
        cli = self.model_copy()
        cli._base = folder  # noqa: SLF001 - the object is a new copy
        return cli

    @property
    def folder(self) -> str | None:
        """The working folder of the program, or None for the working folder of the application."""
        return self.cwd if self.cwd is None or self._base is None else str(self._base / self.cwd)


_PROGRAM_NAME: Final = matching(
    r"[^\s/{}\0-][^\s/{}\0]*", "must be the name of a program, without a folder", "write the program's folder in `path`"
)
_ABSOLUTE: Final = matching(
    r"(?s)(?!.*/\.\.(?:/|\Z))/.*", "must be an absolute path without `..`", "such as /usr/bin/grep"
)
_SUBCOMMAND: Final = matching(r"(?s)(?!-).*", "must not begin with `-`", "list options under `options`")
_OPTION: Final = matching(r"(?!--\Z)-[^\s={}]+", "must be an option", "without a value, such as --regexp or -e")


class Program(Record):
    """A program that tools of type `cli` may run, and the positions in which it accepts arguments of the model.

    Without `path`, the program is searched in `SEARCH_PATH`. In a command line with arguments, fixed words before `--`
    must be `subcommands`. An argument may be the value of one of the `options` or turn that option on. After `--`,
    arguments are allowed only if `operands` is true.
    """

    path: Annotated[Text, _ABSOLUTE] | None = None
    subcommands: tuple[Annotated[Text, _SUBCOMMAND], ...] = ()
    options: tuple[Annotated[Text, _OPTION], ...] = ()
    operands: StrictBool = False


class Release(Record):
    """The release state of a tool version (tool pattern library, 9.5)."""

    gate: Annotated[StrictStr, matching("passed", "must be `passed`", "only released tools load")]
    drift: Annotated[StrictStr, matching("ok", "must be `ok`", "only released tools load")]
    deprecation: Text | None = None


Mapping = Annotated[dict[Annotated[str, Field(min_length=1)], Any], AfterValidator(frozen)]
"""The values that a request's resource or context gets. Strings that start with `$` are expressions."""

MAX_ARGUMENTS: Final = 256 * 1024
"""The default size limit of a call's arguments, in bytes of canonical JSON. An entry overrides it by `max_bytes`."""

Schema = Annotated[dict[str, Any], AfterValidator(frozen)]
_TYPE_NAME: Final = matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", "must be the name of a type", "such as Policyholder")


class ResultLabels(Record):
    """Who controls the fields of a tool's result. The trust in all fields that are not listed is `integrity`.

    Only the system writes `trusted` fields. `parties` name participants; anyone can become a participant. `names` are
    chosen by users. `created` are ids of objects that the call created. `markings` apply to the whole result.
    """

    integrity: Integrity | None = None
    trusted: tuple[FieldPath, ...] | None = None
    parties: tuple[FieldPath, ...] | None = None
    names: tuple[FieldPath, ...] | None = None
    created: tuple[FieldPath, ...] | None = None
    markings: tuple[Term, ...] | None = None


class FlowRules(Record):
    """The data flow rules for a run. A call that breaks a rule gets the verdict `otherwise` (default STEP_UP)."""

    profile: FlowProfile | None = None
    rules: tuple[FlowRule, ...] | None = None
    otherwise: Otherwise | None = None


class Governable(Record):
    """The fields that an entry and the governance file share. An absent field is None; an empty list allows nothing.

    `max_bytes` limits the arguments in canonical JSON. `roles` are the purposes of arguments, or of parts of them by a
    JSON pointer, and of all values in these.
    `admits` are the markings of data that may leave through the tool. `destructive` effects cannot be undone.
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
    roles: dict[ArgumentPath, ArgumentRole] | None = None
    admits: tuple[Term, ...] | None = None
    destructive: StrictBool | None = None
    flow: FlowRules | None = None

    @property
    def is_labelled(self) -> bool:
        """Whether the entry has data flow labels, which describe where values come from and where they may go."""
        return any(field is not None for field in (self.result, self.roles, self.admits, self.flow))


class ActionRules(Governable):
    """The governance file's rules for one action. `accepts` names checks that its tools may fail, with the reasons."""

    accepts: dict[NotATool, Text] | None = None


class Governance(Record):
    """The governance file: the policy author's rules for each `pdp_action`, and the programs that tools may run.

    Every tool must meet the `clauses`. `flow` has the defaults for the field `flow` of all actions.
    """

    actions: dict[Name, ActionRules] = Field(default_factory=dict)
    clauses: tuple[Clause, ...] = ()
    programs: dict[Annotated[str, _PROGRAM_NAME], Program] = Field(default_factory=dict)
    flow: FlowRules | None = None

    def rules_of(self, action: str) -> ActionRules | None:
        """Return the rules for an action, with the default `flow`; None if the file has no rules for the action."""
        rules = self.actions.get(action)
        if self.flow is None:
            return rules
        stated = rules.flow.model_dump(exclude_none=True) if rules and rules.flow else {}
        flow = self.flow.model_copy(update=stated)
        return (rules or ActionRules()).model_copy(update={"flow": flow})


class DeclaredTool(Governable):
    """A tool entry as written in the manifest. Absent fields are None.

    `schema_` (in files `schema`) describes the arguments. When an entry is loaded, its schemas get copies of all
    definitions that they refer to. `commits` names the tools that may commit the actions that this tool stages.
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
        """The action in requests to the policy: `pdp_action`, or else the tool's name."""
        return self.pdp_action or self.name

    @property
    def has_effects(self) -> bool:
        """Whether a call may change anything. A tool without an effect class is assumed to have effects."""
        return self.effect_class not in READ_CLASSES


class EffectiveApproval(ApprovalBlock):
    """An approval block with its defaults filled in."""

    quorum: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    expires: Duration = "PT1H"
    unless_within_limits: bool = False


class Tool(DeclaredTool):
    """An effective entry: the stricter values of manifest and governance file, with defaults filled in.

    For a tool of type `cli`, `program` is the governance file's entry for the program. Without this entry, calls fail.
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
        """Whether the idempotency key is derived from the arguments. Calls of class commit-high must state a key."""
        return self.idempotency.key == "derive(args)" and self.effect_class is not EffectClass.COMMIT_HIGH


class AgentPins(Record):
    """The tools that an agent may use, with the version of each."""

    id: Name
    tools: dict[Name, Semver]


class Ontology(Record):
    """The types of one version of an ontology: JSON Schemas to which the schemas of tools refer by name."""

    version: Text
    types: dict[Annotated[str, _TYPE_NAME], Schema] = Field(alias="$defs")

    @cached_property
    def copies(self) -> dict[str, Any]:
        """The copies of the types that the `$defs` of other schemas contain, by their names in `$defs`."""
        whole, _ = self_contained({"anyOf": [{"$ref": name} for name in self.types]}, {}, self.types)
        return dict(whole.get("$defs", {}))


class Manifest(Record):
    """A manifest file. Without `agents`, any agent may use any tool. `ontology` has types for the tools' schemas."""

    manifest_version: Name
    ontology: Ontology | None = None
    agents: tuple[AgentPins, ...] | None = None
    tools: tuple[DeclaredTool, ...]
