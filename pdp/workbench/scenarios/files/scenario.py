"""The data models of scenario files. `pdp schema scenarios` explains each field.

Unknown keys are errors. An expectation without fields is an error too, because the scenario could never fail.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from pdp.approvals.people import Refusal
from pdp.decision import Verdict
from pdp.documents import FieldError, nearest, shown_name
from pdp.proposal import FailureCode, RejectionCode, Status, Trace
from pdp.session import Session
from pdp.stores.approvals import ApprovalState

_MAX_TEXT = 4096
_ErrorAt = tuple[tuple[str | int, ...], FieldError]


def _text(value: str) -> str:
    if not value.strip():
        raise FieldError("must not be empty")
    if len(value) > _MAX_TEXT:
        raise FieldError(f"must have at most {_MAX_TEXT} characters")
    return value


def _time(value: str) -> str:
    try:
        Session(claims={}, time=value)
    except ValidationError:
        raise FieldError("must be a time such as 2026-07-01T10:00:00Z") from None
    return value


# The tag names the form of a value, so that pydantic reports only the errors of the schema of that form.
def _named(value: Any) -> str:
    return "<object>" if isinstance(value, dict | BaseModel) else "<one>"


def _listed(value: Any) -> str:
    return "<many>" if isinstance(value, list | tuple) else "<one>"


Text = Annotated[StrictStr, AfterValidator(_text)]
Time = Annotated[StrictStr, AfterValidator(_time)]
_NOT_EMPTY: Final = Field(min_length=1)

ACTIONS: Final = ("propose", "plan", "approve", "grant", "deny", "request")
"""The possible actions of a step; each step has exactly one of them."""

_FLOW: Final = ("tainted", "untrusted", "markings", "plan", "anchored", "intended", "arguments")


def proposed_tool(proposal: Any) -> str | None:
    """Return the tool that a proposal names, or None. The proposal may have any structure."""
    name = proposal.get("tool", proposal.get("tool_name")) if isinstance(proposal, dict) else None
    return name if isinstance(name, str) else None


class Form(BaseModel):
    """The base class of all models of a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        errors = [
            InitErrorDetails(type="value_error", loc=at, input=None, ctx={"error": error})
            for at, error in self.errors_together()
        ]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield the faults of fields that contradict each other, each with the path of the faulty field."""
        yield from ()


class ExpectedObligation(Form):
    """An expected obligation with all of its parameters."""

    id: Text
    parameters: dict[str, Any]


class Expect(Form):
    """The expected result of a step. Only the fields that are set are compared; at least one is required."""

    status: Status | None = None
    rejection: RejectionCode | None = None
    verdict: Verdict | None = None
    codes: tuple[Text, ...] | None = None
    details: Annotated[dict[Text, Annotated[dict[str, Any], _NOT_EMPTY]], _NOT_EMPTY] | None = None
    messages: Annotated[dict[Text, Text], _NOT_EMPTY] | None = None
    remedies: Annotated[dict[Text, Text], _NOT_EMPTY] | None = None
    explanations: Annotated[dict[Text, Text], _NOT_EMPTY] | None = None
    obligations: (
        tuple[
            Annotated[
                Annotated[Text, Tag("<one>")] | Annotated[ExpectedObligation, Tag("<object>")], Discriminator(_named)
            ],
            ...,
        ]
        | None
    ) = None
    trace: Annotated[dict[str, Any], _NOT_EMPTY] | None = None
    arguments: dict[str, Any] | None = None
    pruned: StrictBool | None = None
    executed: StrictBool | None = None
    result: Any = None
    failure: FailureCode | None = None
    approval: ApprovalState | None = None
    refused: Refusal | None = None
    grant: Literal["used"] | None = None
    markings: tuple[Text, ...] | None = None
    touched: tuple[Text, ...] | None = None
    flow: Annotated[dict[str, Any], _NOT_EMPTY] | None = None

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield a fault if nothing is expected, or if a text or detail is expected of a code that is not in `codes`."""
        if not self.model_fields_set:
            yield (), FieldError("must not be empty", "add an expectation, such as `verdict: DENY`")
        for name in ("details", "messages", "remedies", "explanations"):
            for code in getattr(self, name) or ():
                if self.codes is not None and code not in self.codes:
                    yield (name, code), FieldError("is not among `codes`", "add the code to `codes`, or remove it here")

    @field_validator("trace", "flow")
    @classmethod
    def _known(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        known = _FLOW if info.field_name == "flow" else Trace.__slots__
        for name in value or ():
            if name not in known:
                hint = nearest(name, known) or f"known fields: {', '.join(known)}"
                raise FieldError(f"has no field {shown_name(name)}", hint)
        if info.field_name == "flow" and not isinstance((value or {}).get("arguments", {}), dict):
            raise FieldError("has `arguments` that are not a mapping by path")
        return value


EXPECTED: Final = {
    "propose": frozenset(Expect.model_fields) - {"refused"},
    "plan": frozenset(Expect.model_fields) - {"refused"},
    "approve": frozenset(("approval", "refused")),
    "grant": frozenset(("approval", "refused")),
    "deny": frozenset(("approval", "refused")),
    "request": frozenset(("verdict", "codes", "details", "messages", "remedies", "obligations")),
}
"""The fields that an expectation may have, for each action."""


class System(Form):
    """A system that the tools of a scenario use, with its initial state."""

    place: Literal["internal", "external", "staging"]
    state: dict[str, Any] = Field(default_factory=dict)


class Approver(Form):
    """The person who grants or denies the pending approval."""

    claims: dict[str, Any]


class Granter(Approver):
    """The person who grants the pending approval beyond its one call: for the run, or until a time."""

    reach: Literal["run", "until"]
    until: Time | None = None


class Step(Form):
    """One action, and its expected result.

    `approve`, `grant` and `deny` answer the approval that the last STEP_UP requested. `request` is sent directly to the
    engine, to test a request that the contract would reject.
    """

    propose: Any = None
    plan: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    approve: Approver | None = None
    grant: Granter | None = None
    deny: Approver | None = None
    request: Any = None
    session: dict[str, Any] = Field(default_factory=dict)
    at: Time | None = None
    returns: Any = None
    expect: Annotated[
        Annotated[Expect, Tag("<one>")] | Annotated[tuple[Expect, ...], Tag("<many>")], Discriminator(_listed)
    ]

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield a fault if the step does not have exactly one action, or has fields that do not fit the action."""
        actions = [name for name in ACTIONS if name in self.model_fields_set]
        if len(actions) != 1:
            stated = " and ".join(actions) or "none"
            yield (
                (),
                FieldError(
                    f"a step must have one action, but this step has {stated}", f"use one of {', '.join(ACTIONS)}"
                ),
            )
            return
        action = actions[0]
        if action == "plan":
            for name, values in (("expect", self.expect), ("returns", self.returns)):
                fits = isinstance(values, list | tuple) and len(values) == len(self.plan or ())
                if name in self.model_fields_set and not fits:
                    yield (name,), FieldError("needs a list with an entry for each proposal of the plan")
        elif isinstance(self.expect, tuple):
            yield ("expect",), FieldError(f"of `{action}` must be a mapping", "only `plan` takes a list")
        if "returns" in self.model_fields_set and action not in ("propose", "plan"):
            yield ("returns",), FieldError(f"cannot be used with `{action}`", "remove it: the step runs no tool")
        known = EXPECTED[action]
        for at, expect in enumerate(self.expectations):
            path = ("expect", at) if isinstance(self.expect, tuple) else ("expect",)
            for name in sorted(expect.model_fields_set - known):
                message = f"cannot be expected of `{action}`"
                yield (*path, name), FieldError(message, f"use one of {', '.join(sorted(known))}")

    @property
    def action(self) -> str:
        """The action of the step, one of `ACTIONS`."""
        return next(name for name in ACTIONS if name in self.model_fields_set)

    @property
    def expectations(self) -> tuple[Expect, ...]:
        """The expectations as a tuple: one for each proposal of a plan, and a single one for any other action."""
        return self.expect if isinstance(self.expect, tuple) else (self.expect,)


class Scenario(Form):
    """A scenario. If `golden`, it fails if the manifest lacks a called tool or the tool's schema rejects the call."""

    name: Text
    why: Text | None = None
    golden: StrictBool = False
    world: dict[Text, System] | None = None
    session: dict[str, Any] = Field(default_factory=dict)
    steps: tuple[Step, ...]

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield a fault if the scenario is golden but calls no tool."""
        if self.golden and self.steps and not any(step.action in ("propose", "plan") for step in self.steps):
            yield ("golden",), FieldError("needs a step that proposes a call", "add `propose`, or remove `golden`")


class ScenarioSettings(Form):
    """The settings of a scenario file. The scenarios are validated later, by `ScenarioSource.scenarios`."""

    extends: Text | None = None
    manifest: Text | None = None
    governance: Text | None = None
    data: tuple[Text, ...] = ()
    policies: tuple[Text, ...] = ()
    bundle: Text | None = None
    tools: Text | None = None
    session: dict[str, Any] = Field(default_factory=dict)
    scenarios: Any = None

    @field_validator("bundle")
    @classmethod
    def _alone(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("policies"):
            raise FieldError("cannot be used with `policies`", "remove one of them: a bundle holds its policies")
        return value
