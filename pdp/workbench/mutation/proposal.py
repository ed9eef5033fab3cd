"""The scenario that would kill a survivor: what it expects, and its text, ready to be pasted under `scenarios:`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.decision import parse_decision
from pdp.errors import AnswerInvalidError
from pdp.workbench.scenarios.running.expectation import has_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdp.decision import Decision, Reason
    from pdp.workbench.mutation.mutant import Mutant

Outcome = dict[str, Any]
"""What an expectation can name of a decision: verdict, codes, obligations; `reasons` are `[code, message, details]`."""

_WHOLE: Final = ("verdict", "codes", "obligations")
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Proposal:
    """The result of a search for a difference.

    Attributes:
        scenario: YAML, a list of one scenario; None when no request shows the difference.
        file: the scenario file that it belongs in.
        note: what the difference needs beside the scenario, or what was searched in vain.
    """

    scenario: str | None
    file: Path | None
    note: str | None = None


class _Plain(yaml.SafeDumper):
    """YAML without aliases, which would hide what stands where."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def outcome_of(decision: Decision) -> Outcome:
    """Return what an expectation can name of a decision."""
    return {
        "verdict": decision.verdict.value,
        "codes": list(decision.codes),
        "obligations": [{"id": each.id, "parameters": each.parameters} for each in decision.obligations],
        "reasons": plain_reasons(decision.reasons),
    }


def answered(answer: bytes | None) -> Outcome:
    """Return what an expectation can name of an engine's answer; None stands for an evaluation that failed."""
    try:
        if answer is not None:
            return outcome_of(parse_decision(answer))
        code = AnswerInvalidError.code
    except AnswerInvalidError as error:
        code = error.code
    return {"verdict": "DENY", "codes": [code], "obligations": [], "reasons": [[code, "", {}]]}


def plain_reasons(reasons: Sequence[Reason]) -> list[list[Any]]:
    """Return reasons as lists of code, message and details."""
    return [[each.code, each.message, each.details] for each in reasons]


def expectation(original: Outcome, mutant: Outcome) -> dict[str, Any] | None:
    """Return an expectation that holds for the original and not for the mutant; None when there is none.

    What reasons say is named only where verdict, codes and obligations are the same.
    """
    if any(original[name] != mutant[name] for name in _WHOLE):
        return {name: original[name] for name in _WHOLE}
    more = reasons_expectation(original["reasons"], mutant["reasons"])
    return {"verdict": original["verdict"], "codes": original["codes"], **more} if more else None


def reasons_expectation(original: Sequence[Sequence[Any]], mutant: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return `details` and `messages` that hold for the original's reasons and not for the mutant's."""
    expect: dict[str, dict[str, Any]] = {}
    for code, message, details in original:
        rivals = [each for each in mutant if each[0] == code]
        if details and not any(has_fields(rival[2], details) for rival in rivals):
            expect.setdefault("details", {})[code] = details
        if message and all(rival[1] != message for rival in rivals):
            expect.setdefault("messages", {})[code] = message
    return expect


def scenario_text(mutant: Mutant, step: Mapping[str, Any], expect: Mapping[str, Any]) -> str:
    """Return a list of one scenario as YAML."""
    scenario = {
        "name": f"kills {mutant.id}",
        "why": f"{mutant.kind} in {mutant.owner} ({mutant.place.file}:{mutant.place.line}) must be noticed",
        **step,
        "expect": dict(expect),
    }
    text = yaml.dump(
        [scenario], Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return str(text).rstrip("\n")


def named(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with texts replaced by the names under which the harness fills them in, such as digests."""
    if isinstance(value, dict):
        return {key: named(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [named(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value
