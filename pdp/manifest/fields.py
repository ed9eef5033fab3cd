"""The scalar types of manifest fields: names, classes, durations, versions. Errors describe the valid values."""

import re
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, StrictStr, StringConstraints
from semver import Version

from pdp.documents import FieldError, shown_name


class RiskTier(StrEnum):
    """The harm that a call can do, from the lowest to the highest (tool registry document, entry schema)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class EffectClass(StrEnum):
    """The kind of effect that a call has, from the lightest to the heaviest (tool pattern library, 9.2)."""

    PURE = "pure"
    READ_INTERNAL = "read-internal"
    READ_EXTERNAL = "read-external"
    STAGE = "stage"
    COMMIT_LOW = "commit-low"
    COMMIT_HIGH = "commit-high"


READ_CLASSES: Final = frozenset((EffectClass.PURE, EffectClass.READ_INTERNAL, EffectClass.READ_EXTERNAL))
"""The effect classes of tools that change nothing."""

EFFECT_TIERS: Final = {
    EffectClass.PURE: RiskTier.LOW,
    EffectClass.READ_INTERNAL: RiskTier.LOW,
    EffectClass.READ_EXTERNAL: RiskTier.MEDIUM,
    EffectClass.STAGE: RiskTier.MEDIUM,
    EffectClass.COMMIT_LOW: RiskTier.MEDIUM,
    EffectClass.COMMIT_HIGH: RiskTier.HIGH,
}
"""The default risk tier by effect class. An entry without an effect class has the highest tier."""


class Pattern(StrEnum):
    """The ten tool patterns (tool pattern library, 9.3)."""

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
"""The effect class that each pattern requires (tool pattern library, 9.3)."""


class Clause(StrEnum):
    """The clauses that a governance file can require: six of the tool pattern library (9.1), and `provenance`."""

    TYPED = "typed"
    VERSIONED = "versioned"
    IDEMPOTENT = "idempotent"
    PERMISSIONED = "permissioned"
    AUDITED = "audited"
    EVAL_GATED = "eval-gated"
    PROVENANCE = "provenance"


UNIVERSAL_CLAUSES: Final = tuple(clause for clause in Clause if clause is not Clause.PROVENANCE)
"""The six clauses of the universal contract in the tool pattern library (9.1)."""


class NotATool(StrEnum):
    """The reasons to reject an entry that is not a tool (tool pattern library, 9.4; see pdp/manifest/rules)."""

    UNTYPED = "not_a_tool.untyped"
    FREE_TEXT = "not_a_tool.free_text"
    DIRECT_ACCESS = "not_a_tool.direct_access"
    UNSTAGED_COMMIT = "not_a_tool.unstaged_commit"


class Writes(StrEnum):
    """Where a tool stores durable output (tool boundary document). Calls that write to `canonical` are rejected."""

    NONE = "none"
    PROPOSAL = "proposal"
    CANONICAL = "canonical"


class Integrity(StrEnum):
    """Whether the result of a tool is trusted. The default is untrusted."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"


class ArgumentRole(StrEnum):
    """The purpose of an argument: recipient, target object, amount, fetched URL, address or content."""

    DESTINATION = "destination"
    OBJECT = "object"
    VALUE = "value"
    URL = "url"
    ADDRESS = "address"
    BODY = "body"


NAMED_BY_PEOPLE: Final = (ArgumentRole.DESTINATION, ArgumentRole.OBJECT, ArgumentRole.URL, ArgumentRole.ADDRESS)
"""The roles of arguments by which a person names a call. Without `by`, these arguments limit a lasting grant."""

SINKS: Final = frozenset((ArgumentRole.DESTINATION, ArgumentRole.URL, ArgumentRole.ADDRESS))
"""The roles of arguments through which data can leave the system."""


class FlowProfile(StrEnum):
    """A preset selection of data flow rules for a run, from the least to the most strict."""

    WATCH = "watch"
    BALANCED = "balanced"
    STRICT = "strict"


FlowRule = Literal[
    "target_untrusted", "value_untrusted", "address_untrusted", "address_composed", "link_untrusted", "egress",
    "destructive", "aimless", "not_anchored", "off_plan",
]  # fmt: skip
"""The names of the data flow rules. A call that breaks a rule gets the reason code `flow.<rule>`."""


class Otherwise(StrEnum):
    """The verdict for a call that breaks a data flow rule, from mild to strict."""

    STEP_UP = "step_up"
    DENY = "deny"


_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,6})W|(?=\d|T\d)(?:(?P<days>\d{1,6})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,7})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,6})?)S)?)?)",
    re.ASCII,
)
_UNIT = re.compile(r"\d{1,12}(?:\.\d{1,12})?", re.ASCII)
# The maximum duration. A longer one would be a mistake, and would exceed the range of clocks and locks when a call
# runs.
_LONGEST: Final = timedelta(days=36_500)


def matching(pattern: str, message: str, hint: str | None = None) -> AfterValidator:
    """Return a validator for texts that match the whole `pattern`. `message` is the error for all other texts."""
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
    """Return the length of an ISO 8601 duration in seconds. Raise `FieldError` for any other text."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise FieldError(
            "must be an ISO 8601 duration", "such as PT10S, PT1H or P1D; months and years have no fixed length"
        )
    parts = {unit: float(number) for unit, number in match.groupdict().items() if number}
    return timedelta(**parts).total_seconds()


def normal_duration(text: str) -> str:
    """Rewrite a duration in hours, minutes and seconds. Raise `FieldError` if it is invalid, zero or too long."""
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
    """Return the `unit` of a limit as a plain decimal such as `0.01`. Raise `FieldError` unless it is above zero."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = format(Decimal(str(value)), "f") if number else str(value)
    if not _UNIT.fullmatch(text) or not Decimal(text):
        raise FieldError("must be a decimal above zero", "such as 1, 0.01 or '0.000001'; at most 12 decimal places")
    return format(Decimal(text).normalize(), "f")


def latency_seconds(latency: str) -> float:
    """Return the seconds of a latency objective such as `200ms` or `1.5s`."""
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
"""A scope, marking, purpose, role or similar name."""

SUBJECT: Final = "$subject"
"""The approver that stands for the person whose agent makes the call. Only the governance file may name it."""

Text = Annotated[StrictStr, StringConstraints(min_length=1, max_length=20_000)]
"""Text that a person or the model reads."""


def _field_path(text: str) -> str:
    if not re.fullmatch(r"(?:/(?:[^~/]|~[01])+){0,32}", text) or len(text) > 512:  # noqa: PLR2004
        raise FieldError(
            "must be a JSON pointer into the result",
            "such as /id (in a list, the id of each item); `*` is any member, and the empty text the whole result",
        )
    return text


ArgumentPath = Annotated[
    StrictStr,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}|(?=.{1,512}\Z)(?:/(?:[^~/]|~[01])+){2,32}",
        "must be the name of an argument, or a JSON pointer to a part of one",
        "such as recipient, or /attachments/*/path; `*` is any item or member",
    ),
]
"""The name of an argument, or a JSON pointer to values inside an argument, in which `*` matches any item or member."""

FieldPath = Annotated[StrictStr, AfterValidator(_field_path)]
"""A JSON pointer to fields of a result. Lists are passed through, and `*` matches any member."""

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
Unit = Annotated[str, BeforeValidator(decimal_unit, json_schema_input_type=str | float)]
"""The unit of which all amounts of a limit are multiples, as decimal text."""

Duration = Annotated[StrictStr, AfterValidator(normal_duration)]
"""An ISO 8601 duration of weeks, days, hours, minutes and seconds, at most 100 years. P1D is stored as PT24H."""


_ARGV_TOKEN: Final = re.compile(
    r"\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?::(?P<flag>-[^{}\s]*))?\}|(?P<brace>[{}])"
)
_ARGV_HINT: Final = "write `{argument}`, or `{argument:--flag}` as a whole item; escape a brace as `{{` or `}}`"


class ArgvItem(NamedTuple):
    """An item of a command line: literals and argument names in turn. `flag` is the option in `{argument:--flag}`."""

    parts: tuple[str, ...]
    flag: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments in this item of `argv`."""
        return self.parts[1::2]


def may_take_value(text: str) -> bool:
    """Return whether a command line item is an option that may take its value from the next item."""
    return text.startswith("-") and "=" not in text


def argv_item(text: str) -> ArgvItem:
    """Parse a command line item. Raise `FieldError` for an unpaired brace, or for a `flag` beside other text."""
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
            raise FieldError(f"must not have other text beside `{token[0]}`", _ARGV_HINT)
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
        raise FieldError(message, "write the program's name as the first item")
    if not argv[0].strip():
        raise FieldError("must begin with a program, and its first item is empty", "name the program: `[grep, ...]`")
    return argv


Argv = Annotated[tuple[Annotated[Text, AfterValidator(_argv_item_text)], ...], AfterValidator(_argv)]
"""The template of a command line. The model cannot choose the program or its options."""
