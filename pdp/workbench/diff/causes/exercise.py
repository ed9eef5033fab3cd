"""Find changed rules whose effect no decided call shows.

The new policies are evaluated again with one change undone at a time: either the old rule is restored, or one new
definition of the rule is removed. If no decision differs, no call shows the change, so the change's effect is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pdp.decision import Verdict, parse_decision
from pdp.errors import EngineError
from pdp.workbench.diff.causes.attribution import Attribution
from pdp.workbench.diff.causes.changes import has_effect, rule_text, swapped
from pdp.workbench.diff.comparison import WORKERS
from pdp.workbench.diff.groups import shortened
from pdp.workbench.diff.policies import BundlePair, BundleRules, ComparedRule

_FIRST: Final = 200
_MOST: Final = 1500

_Answers = Mapping[bytes, bytes | None]


def not_shown(
    pair: BundlePair, attribution: Attribution, calls: Sequence[bytes], settled: AbstractSet[str] = frozenset()
) -> tuple[str, ...]:
    """Return the text of each rule change that no call shows. Calls likely to show a change should come first.

    Changes in `settled` have an answer of the prover, so no call has to show them.
    """
    parts = list(dict(_undone_changes(pair, settled)).items())
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-exercise") as pool:
        for requests in (calls[:_FIRST], calls[_FIRST:_MOST]):
            original = attribution.answers({}, requests) if parts else None
            if original:
                others = [pool.submit(attribution.answers, modules, requests) for _, modules in parts]
                answers = [other.result() for other in others]
                parts = [part for part, other in zip(parts, answers, strict=True) if not _shows(other, original)]
    return tuple(change for change, _ in parts)


def _shows(answers: _Answers | None, original: _Answers) -> bool:
    return answers is not None and any(
        answer is not None and _differs(answer, original.get(call)) for call, answer in answers.items()
    )


def _differs(without: bytes, present: bytes | None) -> bool:
    """Return whether undoing a change changes an answer. A DENY that only gets more reasons does not count."""
    if present is None or without == present:
        return without != present
    try:
        before, after = parse_decision(without), parse_decision(present)
    except EngineError:
        return True
    return not (before.verdict is after.verdict is Verdict.DENY and set(after.codes) < set(before.codes))


def _undone_changes(pair: BundlePair, settled: AbstractSet[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each change of a rule as text, and the modules of the new bundle that differ with the change undone."""
    present = pair.rules[1].keys()
    for name, (before, after) in pair.differing.items():
        if name in settled or not any(map(has_effect, (*before, *after))):
            continue
        if len(after) > len(before):
            for rule in after:
                text = f"{name}: `{_begin(pair.new, rule)}`: no call shows the effect of this rule"
                yield text, swapped(pair, [((rule,), ())], undone=True)
        if before and (after or (name in present and before[0].module in pair.new.bundle.modules)):
            side, first = (pair.new, after[0]) if after else (pair.old, before[0])
            text = f"{name}: `{_begin(side, first)}`: no call shows the effect of this change"
            yield text, swapped(pair, [(after, before)], undone=True)


def _begin(side: BundleRules, rule: ComparedRule) -> str:
    return shortened(" ".join(rule_text(side, rule).split()))
