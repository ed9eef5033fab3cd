"""What a run of mutants came to, as JSON and as plain lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdp.workbench.mutation.mutant import Fate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.workbench.mutation.mutant import Judgement
    from pdp.workbench.mutation.run import MutationRun


def as_json(run: MutationRun) -> dict[str, Any]:
    """Return a run as plain JSON: counts, the score in percent (null: nothing was judged), and every survivor.

    `total` counts what was made, `invalid` of it what OPA refuses; `complete` is false when the run was interrupted,
    and then killed, survived, equivalent and invalid do not come to `total`.
    """
    return {
        **{fate.value: run.count(fate) for fate in Fate},
        "total": run.total,
        "score": None if run.score is None else round(run.score, 2),
        "complete": run.complete,
        "notes": run.notes,
        "survivors": [_survivor(each) for each in run.of(Fate.SURVIVED)],
    }


def summary(run: MutationRun) -> str:
    """Return the counts on one line."""
    counts = ", ".join(f"{run.count(fate)} {fate.value}" for fate in Fate if run.count(fate) or fate is Fate.KILLED)
    judged = len(run.judgements)
    whole = f"{run.total} mutant{'s' * (run.total != 1)}" if judged == run.total else f"{judged} of {run.total} mutants"
    score = "nothing to score" if run.score is None else f"score {run.score:.1f} %"
    return f"{whole}: {counts}; {score}"


def lines(survivor: Judgement) -> Iterator[str]:
    """Yield a survivor as plain lines: where, what, the change as a diff, and the scenario that would kill it."""
    mutant = survivor.mutant
    yield f"{mutant.place.file}:{mutant.place.line}: {mutant.kind} in {mutant.owner} survives"
    yield f"  {mutant.id}"
    yield from (f"    {line}" for line in mutant.diff.splitlines())
    if survivor.unnoticed:
        what = "1 recorded request is" if survivor.unnoticed == 1 else f"{survivor.unnoticed} recorded requests are"
        yield f"  {what} decided differently, and no expectation says so"
    proposal = survivor.proposal
    if proposal is None:
        return
    if proposal.scenario is None:
        yield f"  no scenario to propose: {proposal.note}"
        return
    yield f"  add to {proposal.file}:" + (f" ({proposal.note})" if proposal.note else "")
    yield from (f"    {line}" for line in proposal.scenario.splitlines())


def _survivor(survivor: Judgement) -> dict[str, Any]:
    mutant, proposal = survivor.mutant, survivor.proposal
    return {
        "id": mutant.id,
        "kind": mutant.kind,
        "owner": mutant.owner,
        "file": mutant.place.file,
        "line": mutant.place.line,
        "original": mutant.original,
        "changed": mutant.changed,
        "diff": mutant.diff,
        "unnoticed": survivor.unnoticed,
        "proposal": None
        if proposal is None
        else {
            "scenario": proposal.scenario,
            "file": None if proposal.file is None else str(proposal.file),
            "note": proposal.note,
        },
    }
