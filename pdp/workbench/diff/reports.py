"""Report a bundle diff as text for a terminal and as Markdown for a pull request. JSON output has more details."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from pdp.workbench.diff.result import BundleDiff, ReviewItem
from pdp.workbench.engines import LATE
from pdp.workbench.shown_file import markdown_code, markdown_text, printable

_MOST: Final = 25
"""The maximum number of causes that the terminal report lists; the others are counted."""

_CALL: Final = 88
_FIRST: Final = 5
_CALLS: Final = 3
"""The maximum number of calls that are shown for a change; the others are counted."""


def verdict(diff: BundleDiff) -> str:
    """Return the first line of a report: whether the bundles differ, and how dangerous the differences are."""
    return f"{_verdict(diff)}; the comparison was not finished" if diff.unfinished else _verdict(diff)


def _verdict(diff: BundleDiff) -> str:
    loosening = len(diff.loosenings())
    loosens = f"{loosening or 'nothing'} {'loosen' if loosening > 1 else 'loosens'}"
    if not diff.decided:
        structure = f"; {_count(loosening, 'change')} in structure {loosens.split()[1]}" if loosening else ""
        return f"no call was decided, so decisions were not compared{structure}"
    if not diff.differs:
        return "no difference that can change a decision"
    differences, unseen = f"{_count(len(diff.groups), 'difference')} in decisions", len(diff.unseen())
    hidden = f"{_count(unseen, 'place')} where a loosening would not be seen"
    if unseen and not loosening:
        return f"{hidden}; {differences}"
    return f"{differences}, {loosens}, and {hidden}" if unseen else f"{differences}, {loosens}"


def text_lines(diff: BundleDiff, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of the report for a terminal. The caller escapes unprintable characters.

    With `verbose`, everything that generated calls do not test is listed.
    """
    old, new = diff.names
    yield f"{old} (release {diff.old.release}) -> {new} (release {diff.new.release}): {verdict(diff)}"
    yield from _unfinished_lines(diff)
    yield ""
    for item in diff.review[:_MOST]:
        yield f"{item.direction:<9} {item.sentence}"
        if item.call or item.where:
            yield f"{'':<9} {f'{item.call:<{_CALL}}  {item.where}'.strip()}"
        yield from (f"{'':<9} {line}" for line in item.text)
        yield from (f"{'':<9} {item.proof}",) if item.proof else ()
        if item.ids:
            yield f"{'':<9} ids: {', '.join(item.ids)}"
        yield from (f"{'':<9} {line}" for line in _more_calls(item))
        yield ""
    if len(diff.review) > _MOST:
        yield f"and {len(diff.review) - _MOST} more; use --json to list all of them"
    yield from _proof_lines(diff)
    yield f"known calls: {_known_line(diff)}"
    first, *rest = _generated_lines(diff)
    yield f"generated calls: {first}"
    yield from (f"  {line}" for line in rest)
    first, *rest = diff.not_covered(verbose=verbose)
    yield f"not covered: {first}"
    yield from (f"  {line}" for line in rest)
    yield "use --json to list every difference with its request"


def markdown(diff: BundleDiff) -> str:
    """Return the report as Markdown with collapsed details. Text from bundles and requests is escaped."""
    return "\n".join(_markdown_lines(diff)) + "\n"


def _markdown_lines(diff: BundleDiff) -> Iterator[str]:
    yield f"## Bundle diff: {markdown_text(verdict(diff))}"
    yield from (line for unfinished in _unfinished_lines(diff) for line in ("", markdown_text(unfinished)))
    for item in diff.review[:_FIRST]:
        where = f" {markdown_code(item.where)}" if item.where else ""
        yield from ("", f"**{item.direction}** {markdown_text(item.sentence)}{where}")
        yield from ("", f"> {markdown_text(item.call)}") if item.call else ()
        yield from (line for call in _more_calls(item) for line in ("", f"> {markdown_text(call)}"))
        yield from ("", "```diff", *map(printable, item.text), "```") if item.text else ()
        yield from ("", markdown_text(item.proof)) if item.proof else ()
        yield from ("", _ids(item)) if item.ids else ()
    if rest := diff.review[_FIRST:]:
        yield from ("", f"<details><summary>{_count(len(rest), 'more difference')}</summary>", "")
        yield from (f"- **{item.direction}** {markdown_text(item.sentence)} {_ids(item)}".rstrip() for item in rest)
        yield from ("", "</details>")
    if any(item.ids for item in diff.review):
        yield from ("", "Revert unwanted changes. Explain the others by their ids for `pdp release check`.")
    yield from ("", "<details><summary>What was compared</summary>", "")
    for name, bundle in zip(diff.names, (diff.old, diff.new), strict=True):
        yield f"- {markdown_text(name)}, release {bundle.release}, {markdown_code(bundle.revision)}"
    yield from (f"- {markdown_text(line)}" for line in _proof_lines(diff))
    yield f"- known calls: {markdown_text(_known_line(diff))}"
    yield from (f"- generated calls: {markdown_text(line)}" for line in _generated_lines(diff))
    yield from (f"- not covered: {markdown_text(line)}" for line in diff.not_covered(verbose=True))
    yield from ("", "</details>")


def _proof_lines(diff: BundleDiff) -> Iterator[str]:
    proofs = diff.structure.proofs.values()
    if diff.unproved:
        yield f"proofs: none of {_count(len(diff.structure.rules), 'changed rule')}; {diff.unproved}"
    elif proofs:
        words = Counter("not proved" if proof.word == "not proved" else proof.text for proof in proofs)
        counts = ", ".join(f"{number} {word}" for word, number in sorted(words.items()))
        yield f"proofs of changed rules: {counts}; for all data and for requests that shape.valid admits"


def _ids(item: ReviewItem) -> str:
    return ", ".join(map(markdown_code, item.ids))


def _known_line(diff: BundleDiff) -> str:
    known = diff.known
    skipped = f", {known.skipped} log lines skipped" if known.skipped else ""
    if not known.scenarios and not known.logged:
        return f"none{skipped}; pass --scenarios PATH or --log FILE"
    return (
        f"{known.scenarios} scenarios and {known.logged} recorded requests, {known.calls} different calls{skipped}: "
        f"{_count(len(known.groups), 'difference')}"
    )


def _generated_lines(diff: BundleDiff) -> tuple[str, ...]:
    extent = diff.extent
    lines = [f"{extent.requests} requests: {_count(len(diff.generated), 'difference')}", extent.line]
    return tuple(lines if extent.requests else ["none"])


def _unfinished_lines(diff: BundleDiff) -> tuple[str, ...]:
    lines = "; ".join(diff.unfinished)
    return (f"not finished: {lines}; {LATE}",) if lines else ()


def _more_calls(item: ReviewItem) -> Iterator[str]:
    """Yield the changes without which the shown call is not moved, then some of the other calls with theirs."""
    for number, caused in enumerate(item.calls[:_CALLS]):
        yield from (f"also: {caused.call}",) if number else ()
        yield from (f"only together with: {sentence}" for sentence in caused.only_with)
    if len(item.calls) > _CALLS:
        yield f"and {len(item.calls) - _CALLS} more calls; use --json to list all of them"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
