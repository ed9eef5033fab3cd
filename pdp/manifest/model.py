"""Manifest and governance file as frozen models: what design.md names, one field each.

`DeclaredTool` is an entry as a file states it: what is absent there is None. `Tool` is an effective entry: manifest and
governance merged, defaults filled in (pdp/manifest/effective.py).
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt

from pdp.documents import FieldError
from pdp.manifest.fields import (
    READ_CLASSES,
    Duration,
    EffectClass,
    Name,
    Pattern,
    RiskTier,
    Semver,
    Term,
    Text,
    Writes,
    refuse_canonical,
)
from pdp.manifest.records import (
    Approval,
    Cli,
    ConfigParameter,
    Idempotency,
    Invariant,
    Limit,
    Program,
    ProgramName,
    Provenance,
    Record,
    Release,
    Safety,
    Sla,
    State,
)


def _mapping(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if not name:
            raise FieldError("must not have an empty key")
    return value


Mapping = Annotated[dict[str, Any], AfterValidator(_mapping)]
"""What becomes the request's resource or context: values, where strings that begin with `$` are CEL."""

Schema = dict[str, Any]
"""A JSON Schema of draft 2020-12."""


class Governable(Record):
    """The fields that the policy author may state as well. Absent is None; an empty list admits nothing."""

    effect_class: EffectClass | None = None
    risk_tier: RiskTier | None = None
    scopes: tuple[Term, ...] | None = None
    markings: tuple[Term, ...] | None = None
    purposes: tuple[Term, ...] | None = None
    idempotency: Idempotency | None = None
    limits: tuple[Limit, ...] | None = None
    resource: Mapping | None = None
    context: Mapping | None = None
    approval: Approval | None = None
    provenance: Provenance | None = None
    writes: Annotated[Writes | None, BeforeValidator(refuse_canonical)] = None
    sensitive: tuple[Name, ...] | None = None


class ActionRules(Governable):
    """What the governance file states for one action."""


class Governance(Record):
    """The governance file: the policy author's rules by `pdp_action`, and the programs that tools may run."""

    actions: dict[Name, ActionRules]
    programs: dict[ProgramName, Program] = Field(default_factory=dict)


class DeclaredTool(Governable):
    """One tool entry as the manifest states it.

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
    sla: Sla | None = None
    eval_pack: Text | None = None
    release: Release | None = None

    @property
    def action(self) -> str:
        """The action's name for the policy: `pdp_action`, or else the tool's name."""
        return self.pdp_action or self.name

    @property
    def has_effects(self) -> bool:
        """Whether a call may change something, by its effect class. Without one, it may."""
        return self.effect_class not in READ_CLASSES


class EffectiveApproval(Approval):
    """An approval block with its defaults filled in."""

    quorum: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    expires: Duration = "PT1H"
    unless_within_limits: bool = False


class Tool(DeclaredTool):
    """One effective entry: manifest and governance merged, the stricter holding, defaults filled in.

    `program` is what the governance file states of the program of a tool of type `cli`; None: it may not run.
    """

    program: Program | None = None
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


class AgentPins(Record):
    """The tools, each in one version, that an agent may use."""

    id: Name
    tools: dict[Name, Semver]


class Manifest(Record):
    """A manifest file. `agents` absent: any agent; present: only the agents and versions that it names."""

    manifest_version: Name
    agents: tuple[AgentPins, ...] | None = None
    tools: tuple[DeclaredTool, ...]
