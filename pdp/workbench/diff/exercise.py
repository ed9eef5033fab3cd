"""Whether the calls that were decided show what each changed rule does.

The new policies are evaluated again with one change undone at a time: a rule as it was before, or without one of the
definitions that it gained. Where no call is decided otherwise then, the change is not shown, and nothing is known of
what it admits. Which condition of a rule matters to nobody is for mutation to say.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from pdp.decision import Verdict, parse_decision
from pdp.errors import EngineError, UsageError
from pdp.workbench.diff.comparison import WORKERS
from pdp.workbench.diff.groups import shortened
from pdp.workbench.diff.policies import BundlePair, BundleRules, ComparedRule
from pdp.workbench.opa.edits import edits
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.syntax import Source, Span

_FIRST: Final = 200
_MOST: Final = 1500
_TIMEOUT: Final = 30.0


class _Part(NamedTuple):
    """A change in words, and the module's text with it undone."""

    change: str
    module: str
    text: str


def not_shown(pair: BundlePair, data: Mapping[str, Any], calls: Sequence[bytes]) -> tuple[str, ...]:
    """Return in words each change of a rule that no call shows; without calls, each change.

    `calls` are what the new bundle decided, the likeliest to show something first.

    UsageError, EngineError: OPA cannot be run, or cannot decide the calls.
    """
    parts = list(dict.fromkeys(_parts(pair)))
    if parts and calls:
        with (
            Evaluator(pair.new.opa, pair.new.bundle.modules, data, timeout=_TIMEOUT) as evaluator,
            ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-exercise") as pool,
        ):
            for asked in (calls[:_FIRST], calls[_FIRST:_MOST]):
                original = evaluator.evaluate(asked).answers
                shown = [pool.submit(_shows, evaluator, part, asked, original) for part in parts]
                parts = [part for part, future in zip(parts, shown, strict=True) if not future.result()]
    return tuple(part.change for part in parts)


def _shows(evaluator: Evaluator, part: _Part, calls: Sequence[bytes], original: Mapping[bytes, bytes | None]) -> bool:
    """Whether a call is decided otherwise without the part. One that cannot be decided then shows nothing."""
    try:
        answers = evaluator.evaluate(calls, changed={part.module: part.text}).answers
    except (UsageError, EngineError):
        return False
    return any(answer is not None and _differs(answer, original.get(call)) for call, answer in answers.items())


def _differs(without: bytes, present: bytes | None) -> bool:
    """Whether two answers differ; not by a reason less of what stays denied: another call may have it alone."""
    if present is None or without == present:
        return without != present
    try:
        before, after = parse_decision(without), parse_decision(present)
    except EngineError:
        return True
    return not (before.verdict is after.verdict is Verdict.DENY and set(after.codes) < set(before.codes))


def _parts(pair: BundlePair) -> Iterator[_Part]:
    old, new = pair.old, pair.new
    changed = {
        name: tuple([rule for rule in side if "head" in rule.node] for side in sides)
        for name, sides in pair.differing.items()
    }
    present = pair.rules[1].keys()
    # Helpers that are gone, so that what asks for them can be put back.
    gone = [
        rule_text(old, rule)
        for name, side in changed.items()
        if name not in present
        for rule in side[0]
        if not rule.site
    ]
    for name, (before, after) in changed.items():
        if len(after) > len(before):
            yield from (_without(name, new, rule) for rule in after)
        texts = [rule_text(old, rule) for rule in before]
        if texts and (after or (name in present and before[0].module in new.bundle.modules)):
            first, side = (after[0], new) if after else (before[0], old)
            text = new.bundle.modules[first.module]
            spans = [_span(new, rule) for rule in after if rule.module == first.module]
            for start, end in sorted(spans, reverse=True):
                text = text[:start] + ("\n\n".join(texts) if start == spans[0][0] else "") + text[end:]
            more = gone if after else [*gone, *texts]
            change = f"{name}: `{_begin(side, first)}`: no call shows that it is not what it was"
            yield _Part(change, first.module, "\n\n".join((text, *more)))


def _without(name: str, new: BundleRules, rule: ComparedRule) -> _Part:
    """The module in which a rule never holds; its name stays, since others may ask for it."""
    text = new.bundle.modules[rule.module]
    # The last of the text first.
    for edit in reversed(edits({"rules": [rule.node]}, Source(new.modules[rule.module].file, text))):
        if edit.kind == "rule dropped":
            text = text[: edit.span[0]] + edit.text + text[edit.span[1] :]
    return _Part(f"{name}: `{_begin(new, rule)}`: no call shows that it is there", rule.module, text)


def rule_text(side: BundleRules, rule: ComparedRule) -> str:
    """Return a rule as it is written."""
    return side.bundle.modules[rule.module][slice(*_span(side, rule))]


def _begin(side: BundleRules, rule: ComparedRule) -> str:
    return shortened(" ".join(rule_text(side, rule).split()))


def _span(side: BundleRules, rule: ComparedRule) -> Span:
    """Where a rule stands; of a default, OPA gives the place of its first word alone."""
    source = Source(side.modules[rule.module].file, side.bundle.modules[rule.module])
    start, end = source.span(rule.node) or (0, 0)
    if rule.node.get("default"):
        end = source.text.find("\n", start) % (len(source.text) + 1)
    return start, end
