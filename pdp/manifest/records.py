"""The small records that a tool entry is made of. Frozen; unknown keys are errors."""

from __future__ import annotations

import pathlib  # noqa: TC003 - pydantic reads the types of private attributes
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    Tag,
    model_validator,
)

from pdp.documents import FieldError
from pdp.manifest.fields import Duration, Latency, Name, Term, Text
from pdp.manifest.programs.argv import OPTIONS_END, ArgvText, check_program

_PERCENTILE = re.compile(r"p[0-9]{1,2}(\.[0-9]{1,2})?")


def _percentile(text: str) -> str:
    if not _PERCENTILE.fullmatch(text):
        raise FieldError("must be a percentile", "such as p50 or p99")
    return text


Percentile = Annotated[str, AfterValidator(_percentile)]
"""A percentile of latency, such as `p50` or `p99.9`."""


class Record(BaseModel):
    """Base of every record of a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, populate_by_name=True)


class Idempotency(Record):
    """Whether a call needs an idempotency key, and for how long it is remembered.

    `key: derive(args)` lets the enforcement point derive an absent key from the arguments. A block without `required`
    requires one.
    """

    required: StrictBool = True
    key: Literal["derive(args)"] | None = None
    ttl: Duration | None = None


class Limit(Record):
    """`argument`, a number, is kept at or below the subject's limit of the name `limit`."""

    limit: Term
    argument: Name


class Approval(Record):
    """Who may approve a call, how many of them, and how long a grant holds. An empty `approvers` is nobody.

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

    set: dict[str, Any] = Field(min_length=1)


FixedCode = Literal[
    "INVALID_TOOL_NAME",
    "INVALID_PAYLOAD",
    "MISSING_PROVENANCE",
    "POLICY_VIOLATION",
    "DIRECT_CANONICAL_WRITE_FORBIDDEN",
]
"""The codes of a rejection, which the tool boundary document fixes; `pdp.proposal.RejectionCode` has the same."""


def _correction_tag(value: Any) -> str:
    return "<set>" if isinstance(value, dict | Correction) else "<prune>"


class Invariant(Record):
    """A structural rule of one tool (tool contract document).

    `check` is CEL over `call`, `state`, `config` and `plan`; it must be true. `correct` sets arguments or prunes the
    call; without it a violation rejects, with the code `rejection` (tool boundary document; absent: INVALID_PAYLOAD).
    """

    id: Name
    rule: Text
    check: Text
    correct: (
        Annotated[
            Annotated[Correction, Tag("<set>")] | Annotated[Literal["prune"], Tag("<prune>")],
            Discriminator(_correction_tag),
        ]
        | None
    ) = None
    rejection: FixedCode | None = None


class ConfigParameter(Record):
    """A value that a tool needs at run time, and how it is normalised (tool contract document)."""

    key: Name
    default: Any = None
    normalize: tuple[Literal["strip", "lower", "upper", "empty_to_null"], ...] = ()


class StateEffect(Record):
    """A field that a tool writes to state, and how it merges with what is there (tool contract document)."""

    key: Name
    type: Literal["object", "array", "string", "number", "integer", "boolean"] = "object"
    merge: Literal["replace", "append", "merge_dict"] = "replace"
    preserve_across_turns: StrictBool = False
    prompt_template_var: Name | None = None


class State(Record):
    """The state that a tool reads and writes."""

    reads: tuple[Name, ...] = ()
    effects: tuple[StateEffect, ...] = ()


class Safety(Record):
    """What a run can do to the world, and what it needs (tool layer document)."""

    side_effects: Literal["none", "read", "write", "external"] | None = None
    idempotent: StrictBool | None = None
    requires: tuple[Term, ...] = ()


ExitCode = Annotated[StrictInt, Field(ge=0, le=255)]
"""What a program says when it ends."""


class ExitCodes(Record):
    """What a program's exit codes mean. A code that is in neither list is a failure."""

    result: tuple[ExitCode, ...] = (0,)
    unavailable: tuple[ExitCode, ...] = ()


class Cli(Record):
    """How a tool of type `cli` is run: the program with its arguments, the variables it may see, its folder.

    `argv` is a template (`programs/argv.py`). `env` names variables of the application's environment; beside them the
    program sees a fixed `PATH` and no other. `cwd` is relative to the manifest's folder. `output` says what standard
    output is, `max_output` how many bytes of it at most.
    """

    argv: Annotated[tuple[ArgvText, ...], AfterValidator(check_program)] = Field(min_length=1)
    env: tuple[Name, ...] = ()
    cwd: Text | None = None
    exit_codes: ExitCodes = ExitCodes()
    output: Literal["text", "json"] = "text"
    max_output: Annotated[StrictInt, Field(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    # Not a field: the manifest's digest must not depend on where the manifest is.
    _base: pathlib.Path | None = PrivateAttr(default=None)

    def below(self, folder: pathlib.Path) -> Cli:
        """Return it as stated by a manifest in `folder`."""
        cli = self.model_copy()
        cli._base = folder  # noqa: SLF001 - a copy of its own
        return cli

    @property
    def folder(self) -> str | None:
        """Where the program runs; None: in the application's folder."""
        return self.cwd if self.cwd is None or self._base is None else str(self._base / self.cwd)


def _checked_path(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/"):
        raise FieldError("must be an absolute path without `..`", "such as /usr/bin/grep")
    return text


def _checked_option(text: str) -> str:
    if not re.fullmatch(r"-[^\s={}]+", text) or text == OPTIONS_END:
        raise FieldError("must be an option", "without a value, such as --regexp or -e")
    return text


def _checked_word(text: str) -> str:
    if text.startswith("-"):
        raise FieldError("must not begin with `-`", "options that take an argument are listed under `options`")
    return text


def _checked_program(text: str) -> str:
    if not re.fullmatch(r"[^\s/{}\0-]([^\s/{}\0]*)", text):
        raise FieldError("must be the name of a program, without a folder", "its place is stated by `path`")
    return text


ProgramName = Annotated[str, AfterValidator(_checked_program)]
"""The name of a program, as the first item of `cli.argv` has it."""


class Program(Record):
    """A program that tools of type `cli` may run, and where its command line may carry an argument of the model.

    Attributes:
        path: where it is; None: the first of its name in a fixed path (`programs/allow_list.py`).
        subcommands: the words that a command line with arguments may have before `--`.
        options: the options that may have an argument as their value, or be turned on by one.
        operands: whether arguments may stand behind `--`.
    """

    path: Annotated[Text, AfterValidator(_checked_path)] | None = None
    subcommands: tuple[Annotated[Text, AfterValidator(_checked_word)], ...] = ()
    options: tuple[Annotated[Text, AfterValidator(_checked_option)], ...] = ()
    operands: StrictBool = False


class Release(Record):
    """Where a tool version stands in its release (tool pattern library, 9.5). Only `passed` and `ok` load."""

    gate: Term
    drift: Term
    deprecation: Text | None = None

    @model_validator(mode="after")
    def _released(self) -> Release:
        if self.gate != "passed":
            raise FieldError(f"is not released: gate is `{self.gate}`", "only `gate: passed` loads")
        if self.drift != "ok":
            raise FieldError(f"is not released: drift is `{self.drift}`", "only `drift: ok` loads")
        return self


class Signature(Record):
    """The schemas of a tool's arguments and answer, as the registry record of the tool pattern library states them."""

    request: dict[str, Any]
    response: dict[str, Any] | None = None


Sla = dict[Percentile, Latency]
"""Latency objectives by percentile, such as `{p50: 200ms, p99: 1.5s}`."""
