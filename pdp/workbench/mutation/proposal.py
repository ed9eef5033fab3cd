"""The scenario that would kill a survivor: what it expects, and its text, ready to be pasted under `scenarios:`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.decision import parse_decision
from pdp.errors import AnswerInvalidError
from pdp.workbench.scenarios.running.expectation import has_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pdp.decision import Decision, Obligation
    from pdp.workbench.mutation.mutant import Mutant

Outcome = dict[str, Any]
"""What an expectation can name: verdict, codes, obligations; `reasons` are `[code, message, details]`.

Of an evaluation also status, rejection and `trace`.
"""

_PARTS: Final = ("reasons", "trace")
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class ProposedScenario:
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
        "obligations": obligations_of(decision.obligations),
        "reasons": [[reason.code, reason.message, reason.details] for reason in decision.reasons],
    }


def outcome_of_answer(answer: bytes | None) -> Outcome:
    """Return what an expectation can name of an engine's answer; None stands for an evaluation that failed."""
    try:
        if answer is not None:
            return outcome_of(parse_decision(answer))
        code = AnswerInvalidError.code
    except AnswerInvalidError as error:
        code = error.code
    return {"verdict": "DENY", "codes": [code], "obligations": [], "reasons": [[code, "", {}]]}


def obligations_of(obligations: Iterable[Obligation]) -> list[dict[str, Any]]:
    """Return what an expectation can name of obligations."""
    return [{"id": obligation.id, "parameters": obligation.parameters} for obligation in obligations]


def expectation(original: Outcome, mutant: Outcome) -> dict[str, Any] | None:
    """Return an expectation that holds for the original and not for the mutant; None when there is none.

    What reasons say is named only where all else is the same, and of the trace only what differs.
    """
    whole, other = ({key: value for key, value in each.items() if key not in _PARTS} for each in (original, mutant))
    trace = mutant.get("trace", {})
    traced = {name: value for name, value in original.get("trace", {}).items() if trace.get(name) != value}
    if traced or whole != other:
        return {**whole, **({"trace": traced} if traced else {})}
    more = _reasons_expectation(original.get("reasons", ()), mutant.get("reasons", ()))
    return {"verdict": original["verdict"], **more} if more else None


def _reasons_expectation(original: Sequence[Sequence[Any]], mutant: Sequence[Sequence[Any]]) -> dict[str, Any]:
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
