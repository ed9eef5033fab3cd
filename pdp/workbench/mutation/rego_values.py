"""What stands in the place of a constant, or of a list, set or object that has lost one of its elements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.workbench.opa.syntax import Node, Source, Span

_VERDICTS: Final = ("ALLOW", "DENY", "STEP_UP")
_NUMBER: Final = re.compile(r"-?[0-9.eE+-]+")


def moved(constant: Node, written: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each edit of a number, boolean or string, and the text that stands there then.

    Args:
        constant: the node.
        written: its text; what is not written out, such as a name for it, is left alone.
    """
    kind, value = constant["type"], constant["value"]
    if kind == "number" and _NUMBER.fullmatch(written):
        yield from (("constant moved", str(other)) for other in (value + 1, value - 1))
    elif kind == "boolean" and written in ("true", "false"):
        yield "constant moved", "false" if value else "true"
    elif kind == "string" and written in (f'"{value}"', f"`{value}`"):
        if value in _VERDICTS:
            yield from (("verdict swapped", f'"{other}"') for other in _VERDICTS if other != value)
        else:
            yield "constant moved", f"{written[:-1]}~{written[-1]}"


def shortened(term: Node, source: Source) -> Iterator[str]:
    """Yield the text of a list, set or object without each of its elements, in the order in which they stand."""
    whole = source.span(term)
    spans = [_element(element, source) for element in term["value"]]
    if whole is None or None in spans or source.text[whole[0]] not in "[{":
        return
    # OPA lists the elements of sets and objects by their values, not as they stand.
    known = sorted(span for span in spans if span is not None)
    for index in range(len(known)):
        yield _without(source.text, whole, known, index, is_set=term["type"] == "set")


def _element(element: Any, source: Source) -> Span | None:
    if not isinstance(element, list):
        return source.span(element)
    key, value = source.span(element[0]), source.span(element[1])
    return None if key is None or value is None else (key[0], value[1])


def _without(text: str, whole: Span, spans: Sequence[Span], index: int, *, is_set: bool) -> str:
    if len(spans) == 1:
        return "set()" if is_set else text[whole[0]] + text[whole[1] - 1]
    if index + 1 < len(spans):
        return text[whole[0] : spans[index][0]] + text[spans[index + 1][0] : whole[1]]
    return text[whole[0] : spans[index - 1][1]] + text[spans[index][1] : whole[1]]
