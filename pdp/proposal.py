"""What the model proposes, and what becomes of it.

Source: tool boundary document (proposal `{tool_name, payload}`, rejection `{code, reason}`, outcome
`{status, proposal?, rejection?}`, the five fixed rejection codes) and tool registry document (proposal
`{tool, arguments}`, the trace fields).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self

import orjson

from pdp.errors import PdpError
from pdp.json import MAX_VALUES, JsonValueError, canonical, check_json, digest, parse_json

if TYPE_CHECKING:
    from pdp.model_calls import ToolCall


class RejectionCode(StrEnum):
    """Why a proposal did not pass; fixed by the tool boundary document."""

    INVALID_TOOL_NAME = "INVALID_TOOL_NAME"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    MISSING_PROVENANCE = "MISSING_PROVENANCE"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    DIRECT_CANONICAL_WRITE_FORBIDDEN = "DIRECT_CANONICAL_WRITE_FORBIDDEN"


class ProposalRejectedError(PdpError):
    """A proposal does not pass a check that stands before the policy; `call` is as of `Proposal`."""

    code: ClassVar[str] = "pdp.proposal_rejected"

    def __init__(self, rejection: RejectionCode, reason: str, call: ToolCall | None = None) -> None:
        super().__init__(reason)
        self.rejection = rejection
        self.call = call


@dataclass(frozen=True, slots=True)
class Proposal:
    """One tool call as a model proposes it: a name from the manifest and arguments, plain JSON. Nothing more.

    `text` is the RFC 8785 form of the arguments; whatever runs is parsed from it again, so that nobody changes what was
    decided on. `call` is the model's call that it was read from, if any; `spelling` names the two parts as they came.
    """

    tool: str
    arguments: dict[str, Any]
    text: bytes = field(default=b"", repr=False, compare=False)
    call: ToolCall | None = field(default=None, repr=False, compare=False)
    spelling: tuple[str, str] = field(default=("tool", "arguments"), repr=False, compare=False)

    @classmethod
    def read(cls, value: Any, *, is_checked: bool = False) -> Self:
        """Read a proposal: JSON text or an object, in one of two spellings, or a call in a form of `pdp.model_calls`.

        `is_checked`: `parse_json` has already admitted the object, with at most `MAX_VALUES` values.

        Raises:
            ProposalRejectedError: INVALID_PAYLOAD: not JSON, too large, of another shape, or with unknown fields.
        """
        call = None
        if isinstance(value, Proposal):
            call, value = value.call, value.as_proposed()
        try:
            # Depth 1: in the request, the arguments stand one level deeper than in the proposal.
            if isinstance(value, str | bytes):
                value, is_checked = parse_json(value, depth=1, most=MAX_VALUES, named=_NAMED), True
            if not isinstance(value, dict) or not ("tool" in value or "tool_name" in value):
                from pdp.model_calls import tool_call  # noqa: PLC0415 - only what is in the form of a model's API

                call = tool_call(value)
                if call is not None:
                    value, is_checked = call.as_proposal(), False
            if not is_checked:
                check_json(value, depth=1, most=MAX_VALUES, named=_NAMED)
            spelling, tool, arguments = _parts(value)
            text = canonical(arguments)
            return cls(tool=tool, arguments=orjson.loads(text), text=text, call=call, spelling=spelling)
        except JsonValueError as error:
            raise ProposalRejectedError(RejectionCode.INVALID_PAYLOAD, str(error), call) from None

    @property
    def digest(self) -> str:
        """The digest of the arguments."""
        return digest(self.text)

    def as_json(self) -> dict[str, Any]:
        """Return the proposal in the spelling of the registry document."""
        return {"tool": self.tool, "arguments": self.arguments}

    def as_proposed(self) -> dict[str, Any]:
        """Return the proposal in the spelling that it was read in."""
        return dict(zip(self.spelling, (self.tool, self.arguments), strict=True))


# An argument's name may be named before it is known which tool it is for; what is in it can be sensitive, keys as well.
_NAMED: Final = 2
# The two spellings of the source documents; a proposal uses one of them, whole.
_SPELLINGS: Final = (("tool", "arguments"), ("tool_name", "payload"))
_KINDS: Final = {list: "a list", str: "a string", type(None): "null"}


def _parts(value: Any) -> tuple[tuple[str, str], str, dict[str, Any]]:
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), type(value).__name__)
        raise JsonValueError(f"a proposal is an object with tool and arguments, not {kind}")
    name, payload = _SPELLINGS[1] if "tool_name" in value and "tool" not in value else _SPELLINGS[0]
    tool, arguments = value.get(name), value.get(payload, {})
    if len(value) > (name in value) + (payload in value):
        unknown = min(value.keys() - {name, payload})
        others = "" if name in value else ", or is a call as OpenAI, Anthropic, MCP or Gemini spell it"
        raise JsonValueError(f"unknown field {unknown!r:.60}: a proposal has {name} and {payload}{others}")
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        raise JsonValueError(f"{name} has to be a string and {payload} an object")
    return (name, payload), tool, arguments


class Status(StrEnum):
    """What became of a proposal."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    TRANSFORMED = "transformed"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A fixed code and a reason that is the same for the same input.

    `details` is for programs: where the schema refuses, `faults`: `[{argument, rule, expected, found}]`.
    """

    code: RejectionCode
    reason: str
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return `{code, reason, details?}`."""
        stated = {"details": self.details} if self.details else {}
        return {"code": self.code, "reason": self.reason, **stated}


class FailureCode(StrEnum):
    """Why an accepted call gave no result (tool layer document)."""

    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    TOOL_UNAVAILABLE = "TOOL_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Failure:
    """An execution that gave no result; `details` holds what a caller may branch on."""

    code: FailureCode
    message: str
    details: dict[str, Any] = field(default_factory=dict)


class Execution(NamedTuple):
    """What a call that was allowed gave: the tool's result, or a failure.

    `error` is what the tool raised; `replayed`: an earlier call came to this, and the tool was not asked again.
    """

    result: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    started: bool = True
    attempts: int = 1
    replayed: bool = False

    @property
    def outcome(self) -> Literal["succeeded", "failed", "unknown"]:
        """What became of it, as the audit has it; unknown: nobody knows whether it had its effect."""
        if self.failure is None:
            return "succeeded"
        return "unknown" if self.failure.details.get("effect") == "unknown" else "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal. `proposal` is what was decided, after correction; absent when rejected."""

    status: Status
    proposal: Proposal | None = None
    rejection: Rejection | None = None
    failure: Failure | None = None

    def as_json(self) -> dict[str, Any]:
        """Return `{status, proposal?, rejection?, failure?}`."""
        parts = {
            "proposal": self.proposal and self.proposal.as_proposed(),
            "rejection": self.rejection and self.rejection.as_json(),
            "failure": self.failure and asdict(self.failure),
        }
        return {"status": self.status, **{name: part for name, part in parts.items() if part is not None}}


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace fields of the registry document; None where a check was not reached."""

    tool_name: str | None = None
    manifest_version: str | None = None
    in_manifest: bool | None = None
    schema_valid: bool | None = None
    risk_tier: str | None = None
    pdp_action: str | None = None
    idempotency_key: str | None = None
    idempotency_missing: bool | None = None
    request_id: str | None = None
    tool_call_id: str | None = None
    step_name: str | None = None
