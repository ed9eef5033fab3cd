"""Errors that several layers raise, and the tree of all error classes of the package.

Each line of the tree has the class, its code, its module (in brackets, unless it is `pdp.errors`) and its meaning. A
class that defines no code has the code of its base. The codes of `EngineError`, `BundleError`, `StateError` and their
subclasses are reason codes: if such an error stops a decision, the verdict is DENY with this code.

* PdpError  pdp.error: base of every error
  - ApprovalRefusedError  approvals.refused  [pdp.approvals.people]: a rule forbids this grant, denial or withdrawal
  - BundleError  bundle.invalid: the bundle cannot be read, or must not be used
    - ReleaseFloorError  bundle.invalid  [pdp.engine.bundle.trust]: the file with the newest release number is unusable
    - StaleBundleError  bundle.stale  [pdp.engine.bundle.trust]: the bundle is older than a release that was used before
  - CallDeniedError  pdp.error  [pdp.flow.stages]: an allowed call is denied before it runs, with this error's code
  - EngineError  engine.unavailable: the engine gave no decision
    - AnswerInvalidError  engine.answer_invalid: the answer of the engine or service is malformed
      - UndefinedDocumentError  engine.answer_invalid: the policy does not define the requested document
    - EngineTimeoutError  engine.timeout: the engine gave no decision before its deadline
    - RequestRefusedError  decision.request_invalid: the request is too large, or is not JSON
    - ServiceError  engine.unavailable  [pdp.client.client]: the decision service answered with an HTTP error
    - ToolChangedError  gateway.tool_changed  [pdp.gateway.pins]: an MCP server changed the declaration of a pinned tool
  - ExpressionError  pdp.expression_failed  [pdp.manifest.expressions.path]: an expression of the manifest failed
  - GrantRefusedError  approvals.grant_refused  [pdp.approvals.lasting]: a lasting grant cannot be used or revoked
    - GrantUnknownError  approvals.grant_unknown  [pdp.approvals.lasting]: no lasting grant has this id
  - HookInputError  hook.input_invalid  [pdp.hooks.call]: the input of a hook is malformed
  - HookLimitError  hook.limit_exceeded  [pdp.hooks.call]: the input of a hook exceeds a limit
  - HttpError  pdp.error  [pdp.service.errors]: the service answers with this HTTP status and `error_code`
  - LoopError  pdp.error  [pdp.loop.agent_loop]: the agent loop ended without an answer
    - OutputInvalidError  loop.output_invalid  [pdp.loop.agent_loop]: no answer of the model matches the schema
    - TooManyCallsError  loop.too_many_calls  [pdp.loop.agent_loop]: the model proposed too many calls in one turn
    - ToolIterationsExceededError  loop.iterations_exceeded  [pdp.loop.agent_loop]: too many turns proposed calls
  - MappingError  pdp.mapping_failed  [pdp.contract.request]: the manifest's mapping cannot build a request for the call
  - NotBegunError  idempotency.not_begun  [pdp.stores.keys]: no call is in progress with this idempotency key
  - ObligationError  obligations.unfulfillable  [pdp.obligations.handlers]: an obligation cannot be fulfilled
  - OpaInstallError  opa.install_failed  [pdp.opa.install]: OPA could not be installed
  - ProposalRejectedError  pdp.proposal_rejected  [pdp.proposal]: a proposal failed a check that precedes the policy
  - RepositoryError  bundle.repository_failed  [pdp.workbench.bundles.publish]: publishing failed and changed nothing
  - StateEffectError  pdp.state_effect_invalid  [pdp.contract.inputs]: a tool's result does not fit its state effect
  - StateError  pdp.state: an audit, a store or a run cannot be used
    - ActionConflictError  actions.conflict  [pdp.stores.actions]: the idempotency key belongs to another action
    - ActionStateError  actions.state  [pdp.stores.actions]: the action's state does not allow this change
    - AuditError  audit.write_failed: an audit event could not be written
    - CallConflictError  calls.conflict  [pdp.flow.remote.stored]: the call id belongs to another call
    - RunClosedError  run.closed  [pdp.patterns.run]: the run was closed to make room for other runs
    - RunExpiredError  flow.expired  [pdp.ledger.ledger]: the ledger of the run has expired
    - RunsFullError  run.too_many  [pdp.patterns.run]: too many runs are open or remembered as closed
    - StoreError  store.unavailable: a store could not be read or written
      - StoreFullError  store.full: a store in memory is full
    - UnknownCallError  calls.unknown  [pdp.flow.remote.calls]: the caller began no call with this id
  - ToolDeniedError  pdp.tool_denied  [pdp.flow.guard]: the call of a guarded function is not allowed
  - ToolError  pdp.tool_error  [pdp.execution.failures]: a tool reports why it has no result
    - PatternFault  pdp.pattern_fault  [pdp.patterns.exceptions]: a call or result breaks a rule of the tool's pattern
    - ToolArgumentError  pdp.tool_argument  [pdp.execution.failures]: the tool cannot use one of its arguments
    - ToolException  pdp.tool_exception  [pdp.patterns.exceptions]: base of the failures that a pattern defines
      - NotFoundError  pdp.tool_exception  [pdp.patterns.exceptions]: the source has no such record
      - OutOfDistributionError  pdp.tool_exception  [pdp.patterns.exceptions]: the classified subject fits no class
      - PermissionDeniedError  pdp.tool_exception  [pdp.patterns.exceptions]: the source denies access to the record
      - SourceUnavailableError  pdp.tool_exception  [pdp.patterns.exceptions]: the source is not available or not pinned
      - StaleReplicaError  pdp.tool_exception  [pdp.patterns.exceptions]: the replica is behind the requested version
    - ToolExitError  pdp.tool_exit  [pdp.execution.failures]: a tool's program ended with an error code or a signal
    - ToolResultError  pdp.tool_result  [pdp.execution.failures]: the tool ran, and its result cannot be used
    - ToolUnavailableError  pdp.tool_unavailable  [pdp.execution.failures]: the tool did not run, and cannot run now
      - InputAskedError  pdp.tool_unavailable  [pdp.adapters.mcp]: the MCP tool needs input of the client before it acts
      - UnreachableError  pdp.tool_unavailable  [pdp.gateway.upstream]: the MCP server cannot be reached
    - UpstreamError  pdp.tool_error  [pdp.gateway.upstream]: the MCP server answered with an error
      - ErrorResultError  pdp.tool_error  [pdp.gateway.server]: the tool of the MCP server returned an error result
  - ToolFailedError  pdp.tool_failed  [pdp.flow.guard]: a guarded function was allowed and failed
  - UsageError  pdp.usage: the user's input cannot be used
    - ConfigError  pdp.config_invalid  [pdp.contract.inputs]: a value in the configuration of a tool is invalid
    - FileFaultsError  pdp.file_faults: a file has faults, each with its position
    - MissingExtraError  pdp.missing_extra: an optional dependency is not installed
    - StoreSchemaError  store.schema: the tables of the database are missing or of another release
  - WebhookError  pdp.error  [pdp.service.approvals.webhooks]: a webhook could not be delivered
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

_SHOWN: Final = 160
_SHOWN_BEFORE: Final = 100


class PdpError(Exception):
    """Base of every error of this package.

    Args:
        message: the problem and where it is.
        hint: the next step, as a command to run or a line to write.

    Attributes:
        code: the stable code of the class, for logs and alerts.
        message: as passed.
        hint: as passed; may be None.

    Examples:
        >>> error = PdpError("no manifest", hint="pass the path of a manifest")
        >>> print(error)
        no manifest (pass the path of a manifest)
        >>> error.code
        'pdp.error'
    """

    code: ClassVar[str] = "pdp.error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


class UsageError(PdpError):
    """The user's input cannot be used: an invalid option, or a file that is missing, too large or malformed."""

    code = "pdp.usage"


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file. `line` and `column` count from 1, as in an editor.

    Examples:
        >>> print(Place("manifest.yaml", 12, 5))
        manifest.yaml:12:5
    """

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        # A line break in a file name is escaped, because it could otherwise fake another message.
        file = self.file.replace("\n", "\\n")
        return f"{file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a file. `str` returns its position, its message, the source line of the file and the hint.

    Attributes:
        place: where the fault is.
        message: the problem.
        hint: the correct text; None if unknown.
        warning: True for input that is valid, but is probably a mistake.
        source: the faulty line of the file; empty if it cannot be shown.

    Examples:
        >>> print(Fault(Place("pdp.yaml", 1, 1), "unknown field", "did you mean 'manifest'?", source="manfest: a"))
        pdp.yaml:1:1: unknown field
            manfest: a
            ^
            hint: did you mean 'manifest'?
    """

    place: Place
    message: str
    hint: str | None = None
    warning: bool = False
    source: str = ""

    def __str__(self) -> str:
        kind = "warning: " if self.warning else ""
        lines = [f"{self.place}: {kind}{self.message}"]
        start = max(self.place.column - _SHOWN_BEFORE, 0)
        part = self.source[start : start + _SHOWN]
        # Other control characters are replaced by blanks, because a file must not be able to control the terminal.
        shown = "".join(letter if letter.isprintable() else " " for letter in part).rstrip()
        if shown:
            lines += [f"    {shown}", f"    {' ' * (self.place.column - 1 - start)}^"]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


class FileFaultsError(UsageError):
    """One or more files have faults.

    Attributes:
        faults: all faults, sorted by file, line and column.
    """

    code = "pdp.file_faults"

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column)))
        super().__init__("\n".join(str(fault) for fault in self.faults))


class MissingExtraError(UsageError):
    """An optional dependency is missing. The message has the command that installs the extra with this dependency."""

    code = "pdp.missing_extra"

    def __init__(self, extra: str) -> None:
        super().__init__(f"this needs the extra \"{extra}\": pip install 'tool-pdp[{extra}]'")


class EngineError(PdpError):
    """The engine gave no decision: it cannot be reached, is not ready, or rejected the request."""

    code = "engine.unavailable"


class EngineTimeoutError(EngineError):
    """The engine gave no decision before its deadline."""

    code = "engine.timeout"


class AnswerInvalidError(EngineError):
    """The answer of an engine, or of the decision service, is malformed or does not belong to the request."""

    code = "engine.answer_invalid"


class UndefinedDocumentError(AnswerInvalidError):
    """The requested document is undefined: the policy does not define it, or OPA has not loaded the policy."""


class RequestRefusedError(EngineError):
    """The request is too large, or is not JSON. The policy denies requests that it cannot read with the same code."""

    code = "decision.request_invalid"


class BundleError(PdpError):
    """The bundle cannot be read, or must not be used, for example because its signature is wrong."""

    code = "bundle.invalid"


class StateError(PdpError):
    """An audit, a store or a run cannot be used. If the tool has not started yet, the verdict is DENY."""

    code = "pdp.state"


class AuditError(StateError):
    """An audit event could not be written. If the tool has not started yet, the verdict is DENY."""

    code = "audit.write_failed"


class StoreError(StateError):
    """A store could not be read or written; assume that the operation was not carried out."""

    code = "store.unavailable"


class StoreFullError(StoreError):
    """A store in memory is full, and all its records are still needed."""

    code = "store.full"


class StoreSchemaError(UsageError):
    """The tables of the database are missing, or belong to another release."""

    code = "store.schema"
