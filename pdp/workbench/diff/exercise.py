"""Find changed rules whose effect no decided call shows.

The new policies are evaluated again with one change undone at a time: either the old rule is restored, or one new
definition of the rule is removed. If no decision differs, no call shows the change, so the change's effect is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from pdp.decision import Verdict, parse_decision
from pdp.errors import EngineError, UsageError
from pdp.opa.evaluation import Evaluator
from pdp.opa.syntax import Source, Span
from pdp.workbench.diff.comparison import WORKERS
from pdp.workbench.diff.groups import shortened
from pdp.workbench.diff.policies import BundlePair, BundleRules, ComparedRule
from pdp.workbench.rego_edits import edits

_FIRST: Final = 200
_MOST: Final = 1500
_TIMEOUT: Final = 30.0


class _UndoneChange(NamedTuple):
    """A change of a rule as text, and the path and text of its module with the change undone."""

    change: str
    module: str
    text: str


def not_shown(pair: BundlePair, data: Mapping[str, Any], calls: Sequence[bytes]) -> tuple[str, ...]:
    """Return the text of each rule change that no call shows. Calls likely to show a change should come first."""
    parts = list(dict.fromkeys(_undone_changes(pair)))
    if parts and calls:
        with (
            Evaluator(pair.new.opa, pair.new.bundle.modules, data, timeout=_TIMEOUT) as evaluator,
            ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-exercise") as pool,
        ):
            for requests in (calls[:_FIRST], calls[_FIRST:_MOST]):
                original = evaluator.evaluate(requests).answers
                shown = [pool.submit(_shows, evaluator, part, requests, original) for part in parts]
                parts = [part for part, future in zip(parts, shown, strict=True) if not future.result()]
    return tuple(part.change for part in parts)


def _shows(
    evaluator: Evaluator, part: _UndoneChange, calls: Sequence[bytes], original: Mapping[bytes, bytes | None]
) -> bool:
    try:
        answers = evaluator.evaluate(calls, changed={part.module: part.text}).answers
    except (UsageError, EngineError):
        return False
    return any(answer is not None and _differs(answer, original.get(call)) for call, answer in answers.items())


def _differs(without: bytes, present: bytes | None) -> bool:
    """Return whether undoing a change changes an answer. A DENY that only gets more reasons does not count."""
    if present is None or without == present:
        return without != present
    try:
        before, after = parse_decision(without), parse_decision(present)
    except EngineError:
        return True
    return not (before.verdict is after.verdict is Verdict.DENY and set(after.codes) < set(before.codes))


def _undone_changes(pair: BundlePair) -> Iterator[_UndoneChange]:
    old, new = pair.old, pair.new
    changed = {
        name: tuple([rule for rule in side if "head" in rule.node] for side in sides)
        for name, sides in pair.differing.items()
    }
    present = pair.rules[1].keys()
    # A removed helper is added again together with the rules that use it.
    removed_helpers = [
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
            more = removed_helpers if after else [*removed_helpers, *texts]
            change = f"{name}: `{_begin(side, first)}`: no call shows the effect of this change"
            yield _UndoneChange(change, first.module, "\n\n".join((text, *more)))


def _without(name: str, new: BundleRules, rule: ComparedRule) -> _UndoneChange:
    """Return the module with a rule edited to be never true. The name stays defined, as other rules may use it."""
    text = new.bundle.modules[rule.module]
    # The edits are made from the end of the text, so that the offsets of the other edits stay valid.
    for edit in reversed(edits({"rules": [rule.node]}, Source(new.modules[rule.module].file, text))):
        if edit.kind == "rule dropped":
            text = text[: edit.span[0]] + edit.text + text[edit.span[1] :]
    return _UndoneChange(f"{name}: `{_begin(new, rule)}`: no call shows the effect of this rule", rule.module, text)


def rule_text(side: BundleRules, rule: ComparedRule) -> str:
    """Return the source text of a rule."""
    return side.bundle.modules[rule.module][slice(*_span(side, rule))]


def _begin(side: BundleRules, rule: ComparedRule) -> str:
    return shortened(" ".join(rule_text(side, rule).split()))


def _span(side: BundleRules, rule: ComparedRule) -> Span:
    """Return the start and end of a rule in its module. A default rule, whose end OPA omits, ends with its line."""
    source = Source(side.modules[rule.module].file, side.bundle.modules[rule.module])
    start, end = source.span(rule.node) or (0, 0)
    if rule.node.get("default"):
        end = source.text.find("\n", start) % (len(source.text) + 1)
    return start, end
