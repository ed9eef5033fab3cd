"""The scalar types of manifest fields: names, classes, durations, versions. Each says what it must be."""

import re
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, StrictStr, StringConstraints
from semver import Version

from pdp.documents import FieldError, shown_name


class RiskTier(StrEnum):
    """How much harm a call can do, lowest first (tool registry document, entry schema)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class EffectClass(StrEnum):
    """What a call touches, lightest first (tool pattern library, 9.2)."""

    PURE = "pure"
    READ_INTERNAL = "read-internal"
    READ_EXTERNAL = "read-external"
    STAGE = "stage"
    COMMIT_LOW = "commit-low"
    COMMIT_HIGH = "commit-high"


READ_CLASSES: Final = frozenset((EffectClass.PURE, EffectClass.READ_INTERNAL, EffectClass.READ_EXTERNAL))
"""The classes whose tools change nothing."""

EFFECT_TIERS: Final = {
    EffectClass.PURE: RiskTier.LOW,
    EffectClass.READ_INTERNAL: RiskTier.LOW,
    EffectClass.READ_EXTERNAL: RiskTier.MEDIUM,
    EffectClass.STAGE: RiskTier.MEDIUM,
    EffectClass.COMMIT_LOW: RiskTier.MEDIUM,
    EffectClass.COMMIT_HIGH: RiskTier.HIGH,
}
"""The risk tier of an entry that states none, by its effect class; one without a class has the highest."""


class Pattern(StrEnum):
    """The ten patterns that every tool fits (tool pattern library, 9.3)."""

    EXTRACTION = "extraction"
    LOOKUP = "lookup"
    VALIDATION = "validation"
    CLASSIFICATION = "classification"
    COMPOSITION = "composition"
    ACTION_STAGING = "action-staging"
    APPROVAL_REQUEST = "approval-request"
    AGGREGATION = "aggregation"
    CONVERSION = "conversion"
    SEARCH = "search"


PATTERN_EFFECTS: Final = {
    Pattern.EXTRACTION: EffectClass.PURE,
    Pattern.LOOKUP: EffectClass.READ_EXTERNAL,
    Pattern.VALIDATION: EffectClass.PURE,
    Pattern.CLASSIFICATION: EffectClass.PURE,
    Pattern.COMPOSITION: EffectClass.PURE,
    Pattern.ACTION_STAGING: EffectClass.STAGE,
    Pattern.APPROVAL_REQUEST: EffectClass.COMMIT_LOW,
    Pattern.AGGREGATION: EffectClass.READ_INTERNAL,
    Pattern.CONVERSION: EffectClass.PURE,
    Pattern.SEARCH: EffectClass.READ_INTERNAL,
}
"""The effect class that each pattern fixes (tool pattern library, 9.3)."""


class Clause(StrEnum):
    """The clauses that a governance file can demand: the six of the universal contract, and `provenance`.

    The six are in the order of the document (tool pattern library, 9.1). `provenance` is a requirement of the tool
    boundary document.
    """

    TYPED = "typed"
    VERSIONED = "versioned"
    IDEMPOTENT = "idempotent"
    PERMISSIONED = "permissioned"
    AUDITED = "audited"
    EVAL_GATED = "eval-gated"
    PROVENANCE = "provenance"


UNIVERSAL_CLAUSES: Final = tuple(clause for clause in Clause if clause is not Clause.PROVENANCE)
"""The six clauses of the universal contract."""


class NotATool(StrEnum):
    """The rules that say what is not a tool (tool pattern library, 9.4; pdp/manifest/rules/forbidden.py)."""

    UNTYPED = "not_a_tool.untyped"
    FREE_TEXT = "not_a_tool.free_text"
    DIRECT_ACCESS = "not_a_tool.direct_access"
    UNSTAGED_COMMIT = "not_a_tool.unstaged_commit"


class Writes(StrEnum):
    """Where a tool's durable output goes, lightest first (tool boundary document).

    The contract rejects every call of a tool that writes `canonical` memory.
    """

    NONE = "none"
    PROPOSAL = "proposal"
    CANONICAL = "canonical"


class Integrity(StrEnum):
    """Whether what a tool returns may be believed, lightest first. Absent: untrusted."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"


class ArgumentRole(StrEnum):
    """What a tool does with an argument: who gets it, what it touches, how much, what it fetches, what it says."""

    DESTINATION = "destination"
    OBJECT = "object"
    VALUE = "value"
    URL = "url"
    ADDRESS = "address"
    BODY = "body"


SINKS: Final = frozenset((ArgumentRole.DESTINATION, ArgumentRole.URL, ArgumentRole.ADDRESS))
"""The roles by which data may leave."""


class FlowProfile(StrEnum):
    """Which rules about a run hold, lightest first."""

    WATCH = "watch"
    BALANCED = "balanced"
    STRICT = "strict"


FlowRule = Literal[
    "target_untrusted", "value_untrusted", "address_untrusted", "address_composed", "link_untrusted", "egress",
    "destructive", "aimless", "not_anchored", "off_plan",
]  # fmt: skip
"""The rules about a run, each by the end of its reason code `flow.<rule>`."""


class Otherwise(StrEnum):
    """What a call that breaks a rule about its run gets, lightest first."""

    STEP_UP = "step_up"
    DENY = "deny"


_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,6})W|(?=\d|T\d)(?:(?P<days>\d{1,6})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,7})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,6})?)S)?)?)",
    re.ASCII,
)
_UNIT = re.compile(r"\d{1,12}(?:\.\d{1,12})?", re.ASCII)
# A longer one is a mistake; clocks and locks end at some hundreds of years, and a call would fail there.
_LONGEST: Final = timedelta(days=36_500)


def matching(pattern: str, message: str, hint: str | None = None) -> AfterValidator:
    """Return the validator of texts that match a pattern as a whole; `message` says what they must be."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not text:
            raise FieldError("must not be empty")
        if not compiled.fullmatch(text):
            raise FieldError(message, hint)
        return text

    return AfterValidator(check)


def _semver(text: str) -> str:
    if len(text) > 100 or not Version.is_valid(text):  # noqa: PLR2004
        raise FieldError("must be a semantic version", "write major.minor.patch, such as 1.0.0")
    return text


def duration_seconds(duration: str) -> float:
    """Return the length of an ISO 8601 duration.

    FieldError: not a duration.
    """
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise FieldError(
            "must be an ISO 8601 duration", "such as PT10S, PT1H or P1D; months and years have no fixed length"
        )
    parts = {unit: float(number) for unit, number in match.groupdict().items() if number}
    return timedelta(**parts).total_seconds()


def normal_duration(text: str) -> str:
    """Return a duration in hours, minutes and seconds.

    FieldError: not a duration, or none that a field may have.
    """
    length = timedelta(seconds=duration_seconds(text))
    if not length:
        raise FieldError("must be longer than zero")
    if length > _LONGEST:
        raise FieldError(f"must be at most a hundred years (P{_LONGEST.days}D)", "such as PT10S, PT1H or P1D")
    hours, rest = divmod(length, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds = f"{rest.total_seconds():.6f}".rstrip("0").rstrip(".")
    parts = [(str(hours), "H"), (str(minutes), "M"), (seconds, "S")]
    return "PT" + "".join(number + unit for number, unit in parts if number != "0")


def decimal_unit(value: Any) -> str:
    """Return a unit of sums, a number or its text, as a plain decimal such as `0.01`.

    FieldError: not a number above zero, or one that no sum can be counted in.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = format(Decimal(str(value)), "f") if number else str(value)
    if not _UNIT.fullmatch(text) or not Decimal(text):
        raise FieldError("must be a decimal above zero", "such as 1, 0.01 or '0.000001'; at most 12 places")
    return format(Decimal(text).normalize(), "f")


def latency_seconds(latency: str) -> float:
    """Return the length in seconds of a latency objective."""
    return float(latency[:-2]) / 1000 if latency.endswith("ms") else float(latency[:-1])


Name = Annotated[
    StrictStr,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}",
        "must be a name of letters, digits and `_ . : / -`, at most 128 characters",
    ),
]

Term = Annotated[
    StrictStr, matching(r"[^\s\x00-\x1f\x7f-\x9f]{1,200}", "must be one word without blanks, at most 200 characters")
]
"""A scope, marking, purpose, role or the like."""

SUBJECT: Final = "$subject"
"""Among approvers: the person whose own agent makes the call. Governance alone names it, never for commit-high."""

Text = Annotated[StrictStr, StringConstraints(min_length=1, max_length=20_000)]
"""Text for people or for the model."""


def _field_path(text: str) -> str:
    if not re.fullmatch(r"(?:/(?:[^~/]|~[01])+){0,32}", text) or len(text) > 512:  # noqa: PLR2004
        raise FieldError(
            "must be a JSON pointer into the result",
            "such as /id, which of a list of objects is each one's; `*` is any member, and the empty text all of it",
        )
    return text


FieldPath = Annotated[StrictStr, AfterValidator(_field_path)]
"""Fields of a result: a JSON pointer that passes through the items of lists; `*` is any member."""

Latency = Annotated[
    StrictStr,
    matching(
        r"(?!0+(?:\.0+)?[ms])[0-9]{1,9}(?:\.[0-9]{1,6})?(?:ms|s)",
        "must be a latency in ms or s",
        "such as 200ms or 1.5s",
    ),
]
Percentile = Annotated[str, matching(r"p[0-9]{1,2}(\.[0-9]{1,2})?", "must be a percentile", "such as p50 or p99")]
Semver = Annotated[StrictStr, AfterValidator(_semver)]
Unit = Annotated[str, BeforeValidator(decimal_unit)]
"""The smallest unit that a sum is counted in, as the text of a decimal."""

Duration = Annotated[StrictStr, AfterValidator(normal_duration)]
"""An ISO 8601 duration of weeks, days, hours, minutes, seconds, at most a hundred years; P1D is kept as PT24H."""


_ARGV_TOKEN: Final = re.compile(
    r"\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?::(?P<flag>-[^{}\s]*))?\}|(?P<brace>[{}])"
)
_ARGV_HINT: Final = "write `{argument}`, or `{argument:--flag}` as a whole item; a brace itself is `{{` or `}}`"


class ArgvItem(NamedTuple):
    """One item of a template: literal `parts` and names of arguments in turn, beginning and ending with a literal.

    `flag` is what stands before the value of the one argument.
    """

    parts: tuple[str, ...]
    flag: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments in it."""
        return self.parts[1::2]


def may_take_value(text: str) -> bool:
    """Return whether an item is an option that may take its value from what follows it."""
    return text.startswith("-") and "=" not in text


def argv_item(text: str) -> ArgvItem:
    """Read one item.

    FieldError: a lone brace, or a flag that is not the whole item.
    """
    parts, flag, literal, end = [], None, "", 0
    for token in _ARGV_TOKEN.finditer(text):
        literal += text[end : token.start()]
        end = token.end()
        if token["brace"]:
            raise FieldError(f"has a `{token['brace']}` that is not part of a placeholder", _ARGV_HINT)
        if token["name"] is None:
            literal += token[0][0]
            continue
        if token["flag"] and token[0] != text:
            raise FieldError(f"has `{token[0]}` within an item", _ARGV_HINT)
        flag = token["flag"]
        parts += [literal, token["name"]]
        literal = ""
    return ArgvItem((*parts, literal + text[end:]), flag)


def _argv_item_text(text: str) -> str:
    if "\0" in text:
        raise FieldError("must not have a NUL character")
    item = argv_item(text)
    if item.flag is None and item.arguments and may_take_value(item.parts[0]):
        hint = "state the whole option, as in `--mode={mode}` or `{deep:--deep}`"
        raise FieldError("lets the model write an option", hint)
    return text


def _argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    if names := argv_item(argv[0]).arguments:
        message = f"must begin with a program, not with argument {shown_name(names[0])}"
        raise FieldError(message, "the model chooses arguments, never a program")
    if not argv[0].strip():
        raise FieldError("must begin with a program, and its first item is empty", "name the program: `[grep, ...]`")
    return argv


Argv = Annotated[tuple[Annotated[Text, AfterValidator(_argv_item_text)], ...], AfterValidator(_argv)]
"""The template of a command line. The model writes no option and no program in it."""
