"""The scalar types of manifest fields: names, classes, durations, versions. Each says what it must be."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, StrictStr, StringConstraints
from semver import Version

from pdp.documents import FieldError


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
"""The classes whose tools compute or read, and change nothing."""


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


class Writes(StrEnum):
    """Where a tool's durable output goes, lightest first; `canonical` is refused (tool boundary document)."""

    NONE = "none"
    PROPOSAL = "proposal"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_TERM = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]{1,200}")
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,6})W|(?=\d|T\d)(?:(?P<days>\d{1,6})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,7})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,6})?)S)?)?)",
    re.ASCII,
)
_LATENCY = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>ms|s)", re.ASCII)
_MICROSECONDS: Final = {"weeks": 604_800_000_000, "days": 86_400_000_000, "hours": 3_600_000_000, "minutes": 60_000_000}
# A longer one is a mistake; clocks and locks end at some hundreds of years, and a call would fail there.
_LONGEST_DAYS: Final = 36_500


def _name(text: str) -> str:
    if not text:
        raise FieldError("must not be empty")
    if not _NAME.fullmatch(text):
        raise FieldError("must be a name of letters, digits and `_ . : / -`, at most 128 characters")
    return text


def _term(text: str) -> str:
    if not text:
        raise FieldError("must not be empty")
    if not _TERM.fullmatch(text):
        raise FieldError("must be one word without blanks, at most 200 characters")
    return text


def _semver(text: str) -> str:
    if len(text) > 100 or not Version.is_valid(text):  # noqa: PLR2004
        raise FieldError("must be a semantic version", "write major.minor.patch, such as 1.0.0")
    return text


def _microseconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise FieldError(
            "must be an ISO 8601 duration", "such as PT10S, PT1H or P1D; months and years have no fixed length"
        )
    seconds = match["seconds"] or "0"
    whole, _, fraction = seconds.partition(".")
    total = int(whole) * 1_000_000 + int(fraction.ljust(6, "0"))
    return total + sum(int(match[unit] or 0) * length for unit, length in _MICROSECONDS.items())


def _duration(text: str) -> str:
    total = _microseconds(text)
    if total == 0:
        raise FieldError("must be longer than zero")
    if total > _LONGEST_DAYS * _MICROSECONDS["days"]:
        raise FieldError(f"must be at most a hundred years (P{_LONGEST_DAYS}D)", "such as PT10S, PT1H or P1D")
    minutes, micro = divmod(total, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    second, fraction = divmod(micro, 1_000_000)
    seconds = f"{second}.{fraction:06}".rstrip("0") if fraction else str(second)
    parts = [(str(hours), "H"), (str(minutes), "M"), (seconds, "S")]
    return "PT" + "".join(number + unit for number, unit in parts if number != "0")


def duration_seconds(duration: str) -> float:
    """Return the length in seconds of a duration field.

    Raises:
        FieldError: not a duration.
    """
    return _microseconds(duration) / 1_000_000


def _latency(text: str) -> str:
    match = _LATENCY.fullmatch(text)
    if match is None or float(match["number"]) == 0:
        raise FieldError("must be a latency in ms or s", "such as 200ms or 1.5s")
    return text


def refuse_canonical(value: Any) -> Any:
    """Refuse `writes: canonical` with its reason (tool boundary document: no direct writes to canonical memory).

    Raises:
        FieldError: it is that.
    """
    if value == "canonical":
        raise FieldError("must not be canonical", "tools write proposals: `writes: proposal`")
    return value


def _string_or_fault(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise FieldError("must be a string", "YAML reads it as a number: write it in quotes")
    return value


_Text = Annotated[StrictStr, BeforeValidator(_string_or_fault)]

Name = Annotated[_Text, AfterValidator(_name)]
"""What a tool, an action, an agent or a field is called: no blanks, at most 128 characters."""

Term = Annotated[_Text, AfterValidator(_term)]
"""A scope, marking, purpose, role or the like: one word, at most 200 characters."""

Text = Annotated[_Text, StringConstraints(min_length=1, max_length=20_000)]
"""Text for people or for the model, not empty."""

Semver = Annotated[_Text, AfterValidator(_semver)]
"""A semantic version 2.0.0."""

Duration = Annotated[_Text, AfterValidator(_duration)]
"""An ISO 8601 duration of weeks, days, hours, minutes, seconds, at most a hundred years.

Kept as hours, minutes and seconds: P1D is PT24H. What is kept is such a duration itself.
"""

Latency = Annotated[_Text, AfterValidator(_latency)]
"""A latency objective as the registry record writes it: `200ms`, `1.5s`."""
