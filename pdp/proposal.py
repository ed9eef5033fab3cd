"""Proposals of a model, and their outcomes.

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
    """The reasons why a proposal is rejected, as fixed by the tool boundary document."""

    INVALID_TOOL_NAME = "INVALID_TOOL_NAME"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    MISSING_PROVENANCE = "MISSING_PROVENANCE"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    DIRECT_CANONICAL_WRITE_FORBIDDEN = "DIRECT_CANONICAL_WRITE_FORBIDDEN"


class ProposalRejectedError(PdpError):
    """A proposal failed a check that precedes the policy. `rejection` is a code of the tool boundary document."""

    code: ClassVar[str] = "pdp.proposal_rejected"

    def __init__(self, rejection: RejectionCode, reason: str, call: ToolCall | None = None) -> None:
        super().__init__(reason)
        self.rejection = rejection
        self.call = call


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tool call that a model proposes: a tool of the manifest and its arguments, as plain JSON.

    `text` is the RFC 8785 form of the arguments. The tool's arguments are parsed from `text`, so the tool gets exactly
    what was decided. `call` is the call in the model's format, `spelling` has the proposal's field names.
    """

    tool: str
    arguments: dict[str, Any]
    text: bytes = field(default=b"", repr=False, compare=False)
    call: ToolCall | None = field(default=None, repr=False, compare=False)
    spelling: tuple[str, str] = field(default=("tool", "arguments"), repr=False, compare=False)

    @classmethod
    def read(cls, value: Any, *, is_checked: bool = False) -> Self:
        """Read a proposal: JSON text, an object (`_SPELLINGS`), a call in a format of `pdp.model_calls`, a `Proposal`.

        With `is_checked`, `parse_json` has already checked the object with at most `MAX_VALUES` values. Raises
        `ProposalRejectedError` (INVALID_PAYLOAD) if `value` is not JSON, too large or not a proposal.
        """
        call = None
        if isinstance(value, Proposal):
            call, value = value.call, value.as_proposed()
        try:
            # The depth is limited by one less than in a request, because the request nests the arguments one level
            # deeper.
            if isinstance(value, str | bytes):
                value, is_checked = parse_json(value, depth=1, most=MAX_VALUES, named=_NAMED), True
            if not isinstance(value, dict) or not ("tool" in value or "tool_name" in value):
                from pdp.model_calls import tool_call  # noqa: PLC0415 - only for calls of model APIs

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
        """The digest of the arguments: `sha256:` and 64 hexadecimal digits."""
        return digest(self.text)

    def as_json(self) -> dict[str, Any]:
        """Return `{tool, arguments}`, as in the registry document."""
        return {"tool": self.tool, "arguments": self.arguments}

    def as_proposed(self) -> dict[str, Any]:
        """Return the proposal with the field names that it was read with."""
        return dict(zip(self.spelling, (self.tool, self.arguments), strict=True))


# At this point the tool is not known, so messages name an argument at most, and nothing inside it, which may be
# sensitive.
_NAMED: Final = 2
# The field names in the two accepted formats. A proposal must use one format only.
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
        others = "" if name in value else ", or is a call in the format of OpenAI, Anthropic, MCP or Gemini"
        raise JsonValueError(f"unknown field {unknown!r:.60}: a proposal has {name} and {payload}{others}")
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        raise JsonValueError(f"{name} has to be a string and {payload} an object")
    return (name, payload), tool, arguments


class Status(StrEnum):
    """The status of a proposal after all checks."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    TRANSFORMED = "transformed"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejection of a proposal. Equal proposals are rejected for equal reasons.

    `details` is for programs. `details.faults` lists schema violations: `[{argument, rule, expected, found}]`.
    """

    code: RejectionCode
    reason: str
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return `{code, reason, details?}`."""
        details = {"details": self.details} if self.details else {}
        return {"code": self.code, "reason": self.reason, **details}


class FailureCode(StrEnum):
    """The reasons why an accepted call has no result (tool layer document)."""

    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    TOOL_UNAVAILABLE = "TOOL_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a call that was allowed; callers may branch on `details`."""

    code: FailureCode
    message: str
    details: dict[str, Any] = field(default_factory=dict)


class Execution(NamedTuple):
    """The JSON result of an allowed call, or its failure. `error` is the exception that the tool raised, if any.

    `attempts` counts how often the tool was started. `replayed` means that the result was stored by an earlier call.
    """

    result: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    started: bool = True
    attempts: int = 1
    replayed: bool = False

    @property
    def outcome(self) -> Literal["succeeded", "failed", "unknown"]:
        """The outcome that the audit records; `unknown` means that the tool may or may not have had its effect."""
        if self.failure is None:
            return "succeeded"
        return "unknown" if self.failure.details.get("effect") == "unknown" else "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a proposal. `proposal` includes corrections; `failure` says why an accepted call has no result."""

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
    """The trace fields of the registry document. A field is None if the check that sets it was not reached."""

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
