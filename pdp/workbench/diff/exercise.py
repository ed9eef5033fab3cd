"""Whether the calls that were decided show what each changed rule does.

The new policies are evaluated again with one change undone at a time: a rule as it was before, without one of its
definitions, without one of its conditions, without one element of a list. Where no call is decided otherwise then, the
change is not shown, and nothing is known of what it admits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.errors import EngineError, UsageError
from pdp.workbench.diff.comparison import WORKERS
from pdp.workbench.diff.policies import differing_rules
from pdp.workbench.mutation.rego_edits import edits
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.syntax import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.workbench.diff.policies import BundleRules, ComparedRule
    from pdp.workbench.opa.evaluation import Batch
    from pdp.workbench.opa.syntax import Span

_UNDONE: Final = {"rule dropped": "that it is there", "default changed": "its default",
                  "condition dropped": "its condition", "element lost": "what is in"}  # fmt: skip
"""The edits that undo a part of a rule, and that part in words."""

_GUARD: Final = re.compile(r"is_[a-z]+\((.+)\)")
_SHOWN: Final = 100
_FIRST: Final = 200
_MOST: Final = 1500
_TIMEOUT: Final = 30.0


class NotShown(NamedTuple):
    """A changed rule, the begin of its text, the parts of it that no call shows, in words, and its place."""

    rule: str
    text: str
    parts: tuple[str, ...]
    where: str

    @property
    def line(self) -> str:
        """The rule and its parts in words."""
        return f"{self.rule}: `{self.text}`: no call shows {', '.join(self.parts)}"


class _Part(NamedTuple):
    """A part of a changed rule: the rule's name, text and place, the part in words, and its module without it."""

    rule: str
    begin: str
    where: str
    words: str
    module: str
    text: str


def not_shown(
    old: BundleRules, new: BundleRules, data: Mapping[str, Any], calls: Sequence[bytes]
) -> tuple[NotShown, ...]:
    """Return the changed rules of which a part is shown by no call.

    Args:
        old: the one bundle with its rules.
        new: the other.
        data: by which the new bundle decided the calls.
        calls: as the new bundle is asked them, the likeliest to show something first.

    Raises:
        UsageError, EngineError: OPA cannot be run, or cannot decide the calls.
    """
    parts = list(dict.fromkeys(_parts(old, new)))
    if parts:
        with (
            Evaluator(new.opa, new.bundle.modules, data, timeout=_TIMEOUT) as evaluator,
            ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-exercise") as pool,
        ):
            for asked in (calls[:_FIRST], calls[_FIRST:_MOST]):
                original = evaluator.evaluate(asked)
                shown = [pool.submit(_shows, evaluator, part, asked, original) for part in parts]
                parts = [part for part, future in zip(parts, shown, strict=True) if not future.result()]
    hidden: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for part in parts:
        hidden[part.rule, part.begin, part.where][part.words] = None
    return tuple(NotShown(rule, begin, tuple(words), where) for (rule, begin, where), words in hidden.items())


def _shows(evaluator: Evaluator, part: _Part, calls: Sequence[bytes], original: Batch) -> bool:
    """Whether a call is decided otherwise without the part. One that cannot be decided then shows nothing."""
    try:
        answers = evaluator.evaluate(calls, changed={part.module: part.text}).answers
    except (UsageError, EngineError):
        return False
    pairs = zip(answers, original.answers, strict=True)
    return any(answer is not None and answer != before for answer, before in pairs)


def _parts(old: BundleRules, new: BundleRules) -> Iterator[_Part]:
    changed = {
        name: tuple([rule for rule in side if "head" in rule.node] for side in sides)
        for name, sides in differing_rules(old, new).items()
    }
    known = {(edit.rule, edit.kind, text) for side in changed.values() for edit, text in _edits(old, side[0])}
    present = {name for name, _ in new.rules(old).items()}
    # Helpers that are gone, so that what asks for them can be put back.
    gone = [
        _text(old, rule) for name, side in changed.items() if name not in present for rule in side[0] if not rule.site
    ]
    for name, (before, after) in changed.items():
        if after:
            yield from _undone(name, new, after, known)
        texts = [_text(old, rule) for rule in before]
        if texts and (after or (name in present and before[0].module in new.bundle.modules)):
            module = (after or before)[0].module
            spans = [_span(new, rule) for rule in after if rule.module == module]
            text = new.bundle.modules[module]
            for start, end in sorted(spans, reverse=True):
                text = text[:start] + ("\n\n".join(texts) if start == spans[0][0] else "") + text[end:]
            more = gone if after else [*gone, *texts]
            where, begin = (after or before)[0].place, _begin(new if after else old, (after or before)[0])
            yield _Part(name, begin, where, "that it is not what it was", module, "\n\n".join((text, *more)))


def _undone(
    name: str, new: BundleRules, rules: Sequence[ComparedRule], known: set[tuple[str, str, str]]
) -> Iterator[_Part]:
    for edit, text in _edits(new, rules):
        guard = _GUARD.fullmatch(text)
        rule = next(rule for rule in rules if _within(edit.span, _span(new, rule)))
        whole = new.bundle.modules[rule.module]
        if edit.kind != "rule dropped" and (edit.rule, edit.kind, text) in known:
            continue
        # What a builtin cannot take makes a condition fail as well: a guard beside it says nothing more.
        if guard and whole[slice(*_span(new, rule))].count(guard[1]) > 1:
            continue
        words = _UNDONE[edit.kind] + (f" `{text}`" if edit.kind in ("condition dropped", "element lost") else "")
        changed = whole[: edit.span[0]] + edit.text + whole[edit.span[1] :]
        yield _Part(name, _begin(new, rule), rule.place, words, rule.module, changed)


def _edits(side: BundleRules, rules: Sequence[ComparedRule]) -> Iterator[tuple[Any, str]]:
    """The edits that undo a part of these rules, each with the text that it replaces."""
    for path in dict.fromkeys(rule.module for rule in rules):
        source = Source(side.modules[path].file, side.bundle.modules[path])
        spans = [_span(side, rule) for rule in rules if rule.module == path]
        for edit in edits(side.trees[path], source):
            if edit.kind in _UNDONE and any(_within(edit.span, span) for span in spans):
                yield edit, " ".join(source.text[slice(*edit.span)].split())


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _text(side: BundleRules, rule: ComparedRule) -> str:
    return side.bundle.modules[rule.module][slice(*_span(side, rule))]


def _begin(side: BundleRules, rule: ComparedRule) -> str:
    text = " ".join(_text(side, rule).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _span(side: BundleRules, rule: ComparedRule) -> Span:
    """Where a rule stands; of a default, OPA gives the place of its first word alone."""
    source = Source(side.modules[rule.module].file, side.bundle.modules[rule.module])
    start, end = source.span(rule.node) or (0, 0)
    if rule.node.get("default"):
        end = source.text.find("\n", start) % (len(source.text) + 1)
    return start, end
