"""Report a bundle diff as text for a terminal and as Markdown for a pull request. JSON output has more details."""

from collections.abc import Iterator
from typing import Final

from pdp.workbench.diff.result import BundleDiff, ReviewItem
from pdp.workbench.shown_file import markdown_code, markdown_text, printable

_MOST: Final = 25
"""The maximum number of causes that the terminal report lists; the others are counted."""

_CALL: Final = 88
_FIRST: Final = 5


def verdict(diff: BundleDiff) -> str:
    """Return the first line of a report: whether the bundles differ, and how dangerous the differences are."""
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


def text_lines(diff: BundleDiff) -> Iterator[str]:
    """Yield the lines of the report for a terminal. The caller escapes unprintable characters."""
    old, new = diff.names
    yield f"{old} (release {diff.old.release}) -> {new} (release {diff.new.release}): {verdict(diff)}"
    yield ""
    for item in diff.review[:_MOST]:
        yield f"{item.direction:<9} {item.sentence}"
        if item.call or item.where:
            yield f"{'':<9} {f'{item.call:<{_CALL}}  {item.where}'.strip()}"
        yield from (f"{'':<9} {line}" for line in item.text)
        if item.ids:
            yield f"{'':<9} ids: {', '.join(item.ids)}"
        yield ""
    if len(diff.review) > _MOST:
        yield f"and {len(diff.review) - _MOST} more; use --json to list all of them"
    yield f"known calls: {_known_line(diff)}"
    first, *rest = _generated_lines(diff)
    yield f"generated calls: {first}"
    yield from (f"  {line}" for line in rest)
    yield "use --json to list every difference with its request"


def markdown(diff: BundleDiff) -> str:
    """Return the report as Markdown with collapsed details. Text from bundles and requests is escaped."""
    return "\n".join(_markdown_lines(diff)) + "\n"


def _markdown_lines(diff: BundleDiff) -> Iterator[str]:
    yield f"## Bundle diff: {markdown_text(verdict(diff))}"
    for item in diff.review[:_FIRST]:
        where = f" {markdown_code(item.where)}" if item.where else ""
        yield from ("", f"**{item.direction}** {markdown_text(item.sentence)}{where}")
        yield from ("", f"> {markdown_text(item.call)}") if item.call else ()
        yield from ("", "```diff", *map(printable, item.text), "```") if item.text else ()
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
    yield f"- known calls: {markdown_text(_known_line(diff))}"
    yield from (f"- generated calls: {markdown_text(line)}" for line in _generated_lines(diff))
    yield from ("", "</details>")


def _ids(item: ReviewItem) -> str:
    return ", ".join(map(markdown_code, item.ids))


def _known_line(diff: BundleDiff) -> str:
    known = diff.known
    if not known.scenarios and not known.logged:
        return "none; pass --scenarios PATH or --log FILE"
    skipped = f", {known.skipped} log lines skipped" if known.skipped else ""
    return (
        f"{known.scenarios} scenarios and {known.logged} recorded requests, {known.calls} different calls{skipped}: "
        f"{_count(len(known.groups), 'difference')}"
    )


def _generated_lines(diff: BundleDiff) -> tuple[str, ...]:
    extent = diff.extent
    uncovered = "not covered: " + "; ".join(diff.not_covered())
    lines = [f"{extent.requests} requests: {_count(len(diff.generated), 'difference')}", extent.line]
    lines = lines if extent.requests else ["none"]
    return (*lines, uncovered)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
