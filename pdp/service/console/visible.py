"""Filters for templates: texts with visible control characters, and times as people say them."""

import time
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

from markupsafe import Markup, escape

from pdp.approvals.sentence import in_largest_unit
from pdp.installed import code_url
from pdp.json import canonical
from pdp.opa.modules import baseline_policies_path
from pdp.service.console.texts import TEXTS, text

_LONGEST: Final = 4_000
_LINE: Final = frozenset("\n\t")
_BLANKS: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)))
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))
"""Characters that are printable by their category, but show nothing."""


def with_marks(value: object, most: int = _LONGEST) -> Markup:
    """Return a text as HTML in which control, bidirectional and invisible characters are marked code points.

    If the HTML needs more than `most` characters, the text is cut, and a note says how much is left out.
    """
    whole = str(value)
    marked, shown = escape(whole[:most]), min(len(whole), most)
    if len(marked) > most or not whole[:most].isprintable() or not _BLANKS.isdisjoint(whole[:most]):
        marks = list(map(_marked, whole[:most]))
        lengths = accumulate(map(len, marks))
        shown = sum(length <= most for length in lengths)
        marked = Markup("").join(marks[:shown])
    cut = len(whole) - shown
    note = Markup('<span class="cut">{}</span>').format(text("value.cut", n=cut)) if cut > 0 else Markup("")
    # A text from right to left must not change the order of the text around it.
    return Markup("<bdi>{}</bdi>{}").format(marked, note)


def _marked(character: str) -> Markup:
    if (character.isprintable() and character not in _BLANKS) or character in _LINE:
        return escape(character)
    return Markup('<span class="cp">U+{:04X}</span>').format(ord(character))


def shown_text(name: str, /, **values: Any) -> str:
    """Return a text with its values filled in. If a value is HTML, such as of `|visible`, the text becomes HTML."""
    if any(isinstance(value, Markup) for value in values.values()):
        return escape(TEXTS[name]).format_map(values)
    return text(name, **values)


def json_text(value: Any) -> str:
    """Return a value as JSON, but a text as it is."""
    return value if isinstance(value, str) else canonical(value).decode()


def ago(at: str) -> str:
    """Return how long ago an RFC 3339 time was, such as `5 min ago`."""
    return text("time.ago", duration=duration(time.time() - datetime.fromisoformat(at).timestamp()))


def left(at: str) -> str:
    """Return how long it is until an RFC 3339 time, such as `41 min`."""
    return duration((datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds())


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, such as `41 min`."""
    number, unit = in_largest_unit(seconds)
    return text(f"time.{unit}", n=number)


@lru_cache(maxsize=256)
def code_page(code: str) -> str | None:
    """Return the URL of the page about a code, or None for a code of the tenant's own concerns."""
    from pdp.opa.admission import RESERVED  # noqa: PLC0415 - the service starts without it

    name, _, finding = code.partition(".")
    is_known = not finding or name in RESERVED or (baseline_policies_path() / "authz" / "concerns" / name).is_dir()
    return code_url(code) if is_known else None
