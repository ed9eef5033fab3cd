"""Text about the survivors of a mutation run: their causes, with one scenario for each, and every survivor."""

from collections.abc import Iterator
from typing import Final

from pdp.workbench.mutation.equivalents import different
from pdp.workbench.mutation.mutant import Fate, Judgement, ProposedScenario
from pdp.workbench.mutation.run import MutationRun, cause

MOST_LINES: Final = 58
"""The maximum number of lines without `--verbose`, so that they fit in 60 with the summary."""


def report_lines(run: MutationRun, *, verbose: bool) -> Iterator[str]:
    """Yield the rules that no scenario reaches, then the other survivors by rule and kind, each with one scenario.

    With `verbose`, every survivor follows with its change.
    """
    lines = list(_cause_lines(run))
    if not verbose and len(lines) > MOST_LINES:
        left = sum(not line.startswith(" ") for line in lines[MOST_LINES:])
        lines[MOST_LINES:] = [f"{left} more causes; add --verbose"]
    yield from lines
    for survivor in run.of(Fate.SURVIVED) if verbose else ():
        yield ""
        yield from _survivor_lines(survivor)


def _cause_lines(run: MutationRun) -> Iterator[str]:
    groups: dict[object, list[Judgement]] = {}
    for survivor in run.of(Fate.SURVIVED):
        groups.setdefault(cause(survivor), []).append(survivor)
    # Rules that no scenario reaches come first, then causes that admit more, then the largest.
    order = sorted(
        groups.values(),
        key=lambda group: (group[0].mutant.id not in run.unreached, not any(map(_loosens, group)), -len(group)),
    )
    seen: dict[str, str] = {}
    for group in order:
        first = min(group, key=lambda survivor: survivor.proposal is None)
        mutant, proposal = first.mutant, first.proposal
        line, name = mutant.rule
        where = f"{mutant.place.file}:{line or mutant.place.line}"
        unreached = sum(run.unreached.get(survivor.mutant.id, 0) for survivor in group)
        what = f"no scenario reaches {name} ({unreached + 1} mutants)" if unreached else _kind(name, group)
        scenario = "" if proposal is None else proposal.scenario or ""
        yield f"{where}: {what}{_advice(proposal, seen.get(scenario))}"
        if scenario and scenario not in seen:
            yield f"    {scenario}"
        seen.setdefault(scenario, where)


def _kind(name: str, group: list[Judgement]) -> str:
    loosens = ", loosens the policy" if any(map(_loosens, group)) else ""
    return f"{group[0].mutant.kind} in {name}: {len(group)} survive{'s' * (len(group) == 1)}{loosens}"


def _advice(proposal: ProposedScenario | None, seen: str | None) -> str:
    if proposal is None:
        return ""
    if proposal.scenario is None:
        return f"; {proposal.note}"
    if seen is not None:
        return f"; the scenario for {seen} also detects it"
    return f"; add to {proposal.file}:"


def _loosens(survivor: Judgement) -> bool:
    return survivor.proposal is not None and survivor.proposal.loosens


def _survivor_lines(survivor: Judgement) -> Iterator[str]:
    mutant, proposal = survivor.mutant, survivor.proposal
    more = ", and loosens the policy" if _loosens(survivor) else ""
    yield f"{mutant.place.file}:{mutant.place.line}: {mutant.kind} in {mutant.owner} survives{more}"
    yield f"  {mutant.id}"
    yield from (f"    {line}" for line in mutant.diff.splitlines())
    if survivor.unnoticed:
        yield f"  {different(survivor.unnoticed)}, but no scenario expects it"
    if proposal is not None and proposal.scenario is not None:
        yield f"  add to {proposal.file}: {proposal.scenario}"
