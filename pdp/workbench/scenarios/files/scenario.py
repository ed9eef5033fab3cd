"""Scenario files as frozen models. What each field means: docs/scenarios.md.

Unknown keys are errors, and so is an expectation that expects nothing: a scenario that cannot fail proves nothing.
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

from pdp.approvals.approvals import Refusal
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


# These tell pydantic which of two shapes a value has, so that it complains about that one alone.
def _named(value: Any) -> str:
    return "<object>" if isinstance(value, dict | BaseModel) else "<one>"


def _listed(value: Any) -> str:
    return "<many>" if isinstance(value, list | tuple) else "<one>"


Text = Annotated[StrictStr, AfterValidator(_text)]
Time = Annotated[StrictStr, AfterValidator(_time)]
_NOT_EMPTY: Final = Field(min_length=1)

ACTIONS: Final = ("propose", "plan", "approve", "deny", "request")
"""What a step can do; each step does exactly one of them."""

_FLOW: Final = ("tainted", "untrusted", "markings", "plan", "anchored", "intended", "arguments")


def proposed_tool(proposal: Any) -> str | None:
    """Return the tool that a proposal as it is written names; None where it names none."""
    name = proposal.get("tool", proposal.get("tool_name")) if isinstance(proposal, dict) else None
    return name if isinstance(name, str) else None


class Form(BaseModel):
    """Base of every part of a scenario file."""

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
        """Yield what the fields only get wrong together, each with the path of the part that it is about."""
        yield from ()


class ExpectedObligation(Form):
    """An obligation with all of its parameters."""

    id: Text
    parameters: dict[str, Any]


class Expect(Form):
    """What has to come of a step. What is not stated is not looked at; at least one thing is stated."""

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
    markings: tuple[Text, ...] | None = None
    touched: tuple[Text, ...] | None = None
    flow: Annotated[dict[str, Any], _NOT_EMPTY] | None = None

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield that nothing is expected, and reasons of which more is expected than `codes` admits."""
        if not self.model_fields_set:
            yield (), FieldError("must not be empty", "state what has to come of it, such as `verdict: DENY`")
        for name in ("details", "messages", "remedies", "explanations"):
            for code in getattr(self, name) or ():
                if self.codes is not None and code not in self.codes:
                    yield (name, code), FieldError("is not among `codes`", "name it there as well, or take it out")

    @field_validator("trace", "flow")
    @classmethod
    def _known(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        known = _FLOW if info.field_name == "flow" else Trace.__slots__
        for name in value or ():
            if name not in known:
                hint = nearest(name, known) or f"known here: {', '.join(known)}"
                raise FieldError(f"has no field {shown_name(name)}", hint)
        if info.field_name == "flow" and not isinstance((value or {}).get("arguments", {}), dict):
            raise FieldError("has `arguments` that are not a mapping of their paths")
        return value


EXPECTED: Final = {
    "propose": frozenset(Expect.model_fields) - {"refused"},
    "plan": frozenset(Expect.model_fields) - {"refused"},
    "approve": frozenset(("approval", "refused")),
    "deny": frozenset(("approval", "refused")),
    "request": frozenset(("verdict", "codes", "details", "messages", "remedies", "obligations")),
}
"""What can be expected of each action."""


class System(Form):
    """A system that tools meet in a scenario, and what it holds."""

    place: Literal["internal", "external", "staging"]
    state: dict[str, Any] = Field(default_factory=dict)


class Approver(Form):
    """Who grants or denies the approval that is open."""

    claims: dict[str, Any]


class Step(Form):
    """One thing that is done, and what has to come of it.

    Exactly one of: `propose` (a proposal), `plan` (proposals in their order), `approve` and `deny` (the approval that
    the last STEP_UP opened), `request` (raw input straight to the engine, to reach what the contract stops earlier).
    """

    propose: Any = None
    plan: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    approve: Approver | None = None
    deny: Approver | None = None
    request: Any = None
    session: dict[str, Any] = Field(default_factory=dict)
    at: Time | None = None
    returns: Any = None
    expect: Annotated[
        Annotated[Expect, Tag("<one>")] | Annotated[tuple[Expect, ...], Tag("<many>")], Discriminator(_listed)
    ]

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield that it does not do one thing, or that `expect` or `returns` do not fit what it does."""
        actions = [name for name in ACTIONS if name in self.model_fields_set]
        if len(actions) != 1:
            done = " and ".join(actions) or "nothing"
            yield (), FieldError(f"a step does one thing, and this one {done}", f"state one of {', '.join(ACTIONS)}")
            return
        action = actions[0]
        if action == "plan":
            for name, values in (("expect", self.expect), ("returns", self.returns)):
                fits = isinstance(values, list | tuple) and len(values) == len(self.plan or ())
                if name in self.model_fields_set and not fits:
                    yield (name,), FieldError("needs a list with an entry for each proposal of the plan")
        elif isinstance(self.expect, tuple):
            yield ("expect",), FieldError(f"of `{action}` must be a mapping", "only a plan has a list of them")
        if "returns" in self.model_fields_set and action not in ("propose", "plan"):
            yield ("returns",), FieldError(f"says nothing about `{action}`", "no tool is run")
        known = EXPECTED[action]
        for at, expect in enumerate(self.expectations):
            path = ("expect", at) if isinstance(self.expect, tuple) else ("expect",)
            for name in sorted(expect.model_fields_set - known):
                message = f"is nothing that can be expected of `{action}`"
                yield (*path, name), FieldError(message, f"known here: {', '.join(sorted(known))}")

    @property
    def action(self) -> str:
        """Which of `ACTIONS` it does."""
        return next(name for name in ACTIONS if name in self.model_fields_set)

    @property
    def expectations(self) -> tuple[Expect, ...]:
        """What is expected, one for each proposal of a plan, else one."""
        return self.expect if isinstance(self.expect, tuple) else (self.expect,)


class Scenario(Form):
    """One scenario: a single step written without `steps`, or several.

    A golden one fails where the manifest does not have the tool, or where the tool's schema refuses the arguments.
    """

    name: Text
    why: Text | None = None
    golden: StrictBool = False
    world: dict[Text, System] | None = None
    session: dict[str, Any] = Field(default_factory=dict)
    steps: tuple[Step, ...]

    def errors_together(self) -> Iterator[_ErrorAt]:
        """Yield that it is golden and calls nothing."""
        if self.golden and self.steps and not any(step.action in ("propose", "plan") for step in self.steps):
            yield ("golden",), FieldError("proposes nothing", "let a step `propose` a call, or leave `golden` out")


class ScenarioSettings(Form):
    """A scenario file as a whole. `scenarios` are read one by one, by `ScenarioSource.scenarios`."""

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
            raise FieldError("stands beside `policies`", "a bundle holds its policies: leave one of them out")
        return value
