"""Scenario files as frozen models: what design.md, "Scenario file", names.

A scenario is one proposal, or several steps, and what has to come of each. Unknown keys are errors, and so is an
expectation that expects nothing: a scenario that cannot fail proves nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from pdp.decision import Verdict
from pdp.documents import FieldError
from pdp.proposal import FailureCode, RejectionCode, Status, Trace

_MAX_TEXT = 4096


def _text(value: str) -> str:
    if not value.strip():
        raise FieldError("must not be empty")
    if len(value) > _MAX_TEXT:
        raise FieldError(f"must have at most {_MAX_TEXT} characters")
    return value


Text = Annotated[StrictStr, AfterValidator(_text)]

ACTIONS = ("propose", "plan", "approve", "deny", "request")
"""What a step can do; each step does exactly one of them."""


class Form(BaseModel):
    """Base of every part of a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Expect(Form):
    """What has to come of a step. What is not stated is not looked at; at least one thing is stated.

    Args:
        status: accepted, rejected or transformed.
        rejection: the fixed code; null: not rejected.
        verdict: ALLOW, DENY or STEP_UP; null: the policy was not asked.
        codes: the reasons' codes, as a set, exactly.
        obligations: exactly these: an id, or `{id, parameters}`, each.
        trace: some of the trace's fields.
        arguments: the arguments after correction, exactly.
        pruned: whether the call was dropped from its plan.
        executed: whether the tool was started.
        result: what the tool returned and the caller got, exactly.
        failure: the code of an execution that failed; null: none.
        approval: the state of the approval that the step opened, used or decided; null: there is none.
        refused: why an approval was not granted or denied (a code such as `requester`); null: it was.
        markings: those that the result carries, as a set, exactly.
    """

    status: Status | None = None
    rejection: RejectionCode | None = None
    verdict: Verdict | None = None
    codes: tuple[Text, ...] | None = None
    obligations: tuple[Text | dict[str, Any], ...] | None = None
    trace: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    pruned: StrictBool | None = None
    executed: StrictBool | None = None
    result: Any = None
    failure: FailureCode | None = None
    approval: Literal["pending", "granted", "denied", "withdrawn", "expired", "consumed"] | None = None
    refused: Text | None = None
    markings: tuple[Text, ...] | None = None

    @model_validator(mode="after")
    def _expects(self) -> "Expect":
        if not self.model_fields_set:
            raise FieldError("must not be empty", "state what has to come of it, such as `verdict: DENY`")
        for name in self.trace or ():
            if name not in Trace.__slots__:
                raise FieldError(f"has an unknown trace field `{name}`", f"known: {', '.join(Trace.__slots__)}")
        return self


class Approver(Form):
    """Who grants or denies the approval that is open."""

    claims: dict[str, Any]


class Step(Form):
    """One thing that is done, and what has to come of it.

    Exactly one of: `propose` (a proposal), `plan` (proposals in their order), `approve` and `deny` (the approval that
    the last STEP_UP opened), `request` (raw input straight to the engine, to reach what the contract stops earlier).

    Args:
        session: laid over the scenario's, deep.
        at: the time of the step, RFC 3339 in UTC with `Z`; the session's when absent.
        returns: stands in for the tool's result.
        expect: what has to come of it; for a plan a list, one for each proposal.
    """

    propose: Any = None
    plan: tuple[Any, ...] | None = None
    approve: Approver | None = None
    deny: Approver | None = None
    request: Any = None
    session: dict[str, Any] = Field(default_factory=dict)
    at: Text | None = None
    returns: Any = None
    expect: Expect | tuple[Expect, ...]

    @property
    def action(self) -> str:
        """Which of `ACTIONS` it does."""
        return next(name for name in ACTIONS if name in self.model_fields_set)


class Scenario(Form):
    """One scenario: a single step written without `steps`, or several.

    Args:
        name: unique in its file.
        why: the rule or the document that it comes from; shown when it fails.
        golden: a call as a well-behaved agent makes it; the release gate looks at these.
        session: laid over the file's, deep.
        steps: several steps instead of one.
    """

    name: Text
    why: Text | None = None
    golden: StrictBool = False
    session: dict[str, Any] = Field(default_factory=dict)
    steps: tuple[Step, ...]


class ScenarioFile(Form):
    """A scenario file. Paths are relative to the file that states them.

    Args:
        extends: a file whose settings hold where this one states none; sessions are laid over each other, deep. Its
            scenarios are its own: they are not run again.
        manifest, governance: the manifest that the proposals are held against.
        data: files with the roots `directory` and `settings`.
        policies: folders with concerns of one's own, compiled with OPA.
        bundle: instead of `policies`, a bundle file.
        tools: a Python file with functions named as the tools, or a function `tools()` that returns them by name.
        session: what every scenario starts from.
    """

    extends: Text | None = None
    manifest: Text | None = None
    governance: Text | None = None
    data: tuple[Text, ...] = ()
    policies: tuple[Text, ...] = ()
    bundle: Text | None = None
    tools: Text | None = None
    session: dict[str, Any] = Field(default_factory=dict)
    scenarios: tuple[Scenario, ...] = ()
