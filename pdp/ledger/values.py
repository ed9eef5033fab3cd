"""Normal forms of values, values inside texts, and the search for values in the user's words.

Values have the same normal form if they differ only in Unicode compatibility forms, case, white space or thousands
separators, or as `20.0` and `20` do. Addresses may also differ in scheme, `www.` and a final slash; the part after the
host is unchanged. An encoded value has another normal form, so an encoded value counts as made up by the model.
"""

import re
import unicodedata
from collections.abc import Container, Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from html import unescape
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pdp.json import pointer

LONGEST: Final = 256
"""The maximum number of characters of a value. A longer text is prose, of which only the values inside count."""

SHORTEST: Final = 3  # Shorter values occur in many texts and identify nothing.

_MOST_DIGITS: Final = 28  # Numbers with more digits are not compared as numbers, because `Decimal` would round them.
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,3}(?:[,'\u2019 ]\d{3})+|\d+)(?:\.\d+)?")
_CODE: Final = re.compile(r"[+-]?0\d")  # Texts with leading zeros, such as phone numbers, are not converted to numbers.
# A character of a host label. Combining marks are listed, because some scripts write vowels as marks, which are not
# letters.
_LABEL: Final = r"[\w\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u109f\u1780-\u17d3\u3099\u309a-]"
_TLD: Final = rf"(?:xn--[a-z0-9-]{{1,59}}|(?:(?![\d_-]){_LABEL}){{2,24}})"
_REST: Final = r"[^\s<>\"'`|\\^{}\[\]]"
_LITERAL: Final = r"\[[0-9a-f.%]*:[\w:.%]*\]"  # An IPv6 address.
_LINK: Final = re.compile(rf"(?:https?:[/\\]{{0,9}}|www\.)(?:{_LITERAL}|{_REST}){_REST}*", re.IGNORECASE)
_MAIL: Final = re.compile(
    rf"(?:(?<![\w.+%-])[\w.+%-]{{1,64}}|(?=@)(?<=[\w.+%-]{{64}}))"
    rf"@(?:{_LABEL}{{1,63}}(?:\.{_LABEL}{{1,63}}){{1,8}}|\[[\w:.]+\])"
)
_PART: Final = r"(?:0x[0-9a-f]{1,8}|\d{1,11})"
_IP: Final = (
    rf"(?:(?:{_PART}\.){{3}}{_PART}|(?=[\d.]{{0,36}}0x)(?:{_PART}\.){{0,2}}{_PART})(?:(?=/)|:\d{{1,5}})"
    rf"|\d{{8,10}}(?=/[^\W\d])|{_LITERAL}(?=[:/])"
)
_HOST: Final = re.compile(
    rf"(?<![\w-])(?<![\w-]\.)(?<![\w.+%-]@)(?:(?:{_LABEL}+\.)+{_TLD}(?![^\W_]|[\w.+%-]{{0,64}}@[\w\[])|{_IP})(?:/{_REST}*)?",
    re.IGNORECASE,
)
_IBAN: Final = re.compile(
    r"(?<![A-Za-z0-9_])(?=[^\W\d_]{2}(?:[ ._/:-]?[A-Za-z]{0,4}[ ._/:-]?[A-Za-z]{0,4}\d){6})"
    r"[^\W\d_]{2}\d{2}(?:[ ._/:-]?[A-Za-z0-9]{4}){2,7}(?:[ ._/:-]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9_])"
)
_SPREAD: Final = re.compile(  # An account number whose groups may have any length.
    r"(?<![A-Za-z0-9])(?=([A-Za-z][\W_]{0,3}[A-Za-z](?:[\W_]{0,3}\d){2}(?:[\W_]{0,3}[A-Za-z0-9]){11,30}))"
)
_SHORTEST_ACCOUNT: Final = 15
_FEWEST_DIGITS: Final = 10  # An account that is found only by its checksum has at least this many digits.
_HIDDEN: Final = re.compile(  # Control characters, format characters and others that programs do not display.
    "[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Parts of a page that are not displayed: tags inside a word, comments and repeated blanks.
_NOT_SHOWN: Final = re.compile(
    r"</?(?:a|b|em|font|i|small|span|strong|u|wbr)\b[^<>]{0,200}>|<!--[^<>]{0,200}>|(?<=\s)\s+"
)
_OTHER_DIGIT: Final = re.compile(r"[^\D0-9]")
_CJK: Final = r"\u3040-\u30ff\u3400-\u9fff"
# A Chinese or Japanese full stop acts as the dot of a host between other letters and before a path.
_DOT: Final = re.compile(rf"(?<=[^\W{_CJK}])\u3002(?=[^\W{_CJK}])|\u3002(?=\w{{2,63}}/)")
# A reference number such as INV-2291 or 4711008.
_REFERENCE: Final = re.compile(r"(?<![\w.@-])(?=[\w-]{0,39}\d)[\w-]{6,40}(?![\w@-])")
_AMOUNT: Final = re.compile(r"(?<![\w.,:/-])(?:\d{1,3}(?:[,'\u2019]\d{3})+|\d+)(?:\.\d+)?(?![\w:/-]|[.,]\d)")
_DIGIT: Final = re.compile(r"\d")
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_AUTHORITY_END: Final = re.compile(r"[/\\?#]")
_SPACE_OR_PART: Final = re.compile(r"[^\w.@%+:-]")
# The expression starts with an anchor, because it would otherwise take quadratic time for blanks.
_ITEM: Final = re.compile(r"^\s*(?:[-*\u2022]|\d{1,3}[.)])\s+")
_LONGEST_ITEM: Final = 64
_ANY_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ADDRESS: Final = re.compile(rf"(https?://[^\s/\\?#]+|(?:{_LABEL}+\.)+{_TLD}(?=/)|{_IP})([/\\?#]\S*)", re.IGNORECASE)
# A host of plain letters without a user name, and no character that programs skip or replace.
_PLAIN_LINK: Final = re.compile(
    r"((?:https?://)?(?:[a-z0-9-]{1,63}\.){1,8}[a-z][a-z0-9-]{0,62}(?::[0-9]{1,5})?)(?:/[!#$%&'()*+,./:;=?@\w~-]*)?",
    re.IGNORECASE | re.ASCII,
)
_SCHEME: Final = re.compile(r"https?://(?:www\.)?|www\.")
_FILE: Final = re.compile(  # The file endings .py, .md and .zip are left out, because they are also top-level domains.
    r"[\w.-]+\.(?:txt|pdf|docx?|xlsx?|pptx?|csv|json|xml|html?|ya?ml|png|jpe?g|gif|log)", re.IGNORECASE
)
_SIGIL: Final = re.compile(r"[#@](?=[\w-]+\Z)")  # The sign before a channel, a user or an order. Users may omit it.
_END_OF_LINK: Final = ".,;:!?)'\""
_JOINS: Final = "@.-_/:+%&=~#"
_SMALL: Final = 1000
_FUNCTION_WORD: Final = re.compile(
    "a|an|at|by|in|is|me|my|of|on|or|to|about|after|again|all|also|and|any|are|ask|before|but|can|check|could|did|does|each|else|find|for|from|get|give|has|"
    "had|have|her|here|him|his|how|into|its|just|let|like|list|look|make|many|more|most|much|must|need|new|not|now|off|"
    "one|only|other|our|out|over|please|put|read|same|see|send|she|should|show|some|such|sum|tell|than|that|the|their|"
    "them|then|there|these|they|this|those|through|too|two|until|use|very|want|was|way|were|what|when|where|which|while|"
    "who|why|will|with|would|write|yes|you|your"
)
# A word that contains a digit, a punctuation mark or a capital letter, such as 1j1l, ab-c or newPin.
_NO_WORD: Final = re.compile(r"(?=\w)\S*(?:\d|(?<=\w)(?:[^\w\s'\u2019](?=\w)|[A-Z]))\S*(?<=\w)")
WORD: Final = re.compile(r"[^\W\d_]{3,}")
_PART_OF_TEXT: Final = re.compile(r"[^\W_]+")


def normal(value: Any) -> str:
    """Return the normal form of a text or number; empty for null, booleans, blanks and texts over 256 characters."""
    if isinstance(value, str):
        return _normal_text(value) if len(value) <= LONGEST else ""
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, bool):
        return ""
    return _normal_number(str(value))


@lru_cache(4096)
def _normal_text(text: str) -> str:
    if text.isalpha() and text.isascii():
        return text.lower()
    if text[:1] in ("#", "@"):
        text = _SIGIL.sub("", text, count=1)
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    # Addresses are converted to lower case without case folding, because folding would make hosts with ß and with ss
    # equal.
    plain = " ".join((plain.lower() if "@" in plain or "." in plain else plain.casefold()).split())
    if len(plain) <= _MOST_DIGITS and _NUMBER.fullmatch(plain) and not _CODE.match(plain):
        return _normal_number(plain)
    if "/" in plain and (address := _ADDRESS.fullmatch(text.strip())):
        # After the host, the case and the form of letters are kept, because they can carry data or select another page.
        return f"{_normal_text(address[1])}{address[2]}".rstrip("/")
    if _SCHEME.match(plain):
        return _SCHEME.sub("", plain, count=1).rstrip("/")
    return re.sub(r"[\W_]", "", plain) if _IBAN.fullmatch(plain) else plain.rstrip("/") or plain


def _normal_number(text: str) -> str:
    number = Decimal(re.sub(r"[,'\u2019 ]", "", text))
    plain = format(number.normalize(), "f")
    return "0" if plain == "-0" else plain


def is_numeric(value: str) -> bool:
    """Return whether a normal form is a number."""
    return _DECIMAL.fullmatch(value) is not None


def names_something(value: str) -> bool:
    """Return whether a value, in normal form, can identify something. Small numbers, short and common words cannot."""
    if len(value) < SHORTEST or _FUNCTION_WORD.fullmatch(value):
        return False
    return not is_numeric(value) or abs(Decimal(value)) >= _SMALL


def links(text: str) -> list[str]:
    """Return the distinct links, hosts, mail addresses and accounts in a text, both as written and decoded."""
    distinct: dict[str, str] = {}
    shown = normalized(text)
    decoded = normalized(unescape(unquote(shown)))
    for form in dict.fromkeys((shown, decoded, normalized(unescape(unquote(_NOT_SHOWN.sub("", decoded)))))):
        patterns = [_LINK, _HOST] if "." in form or "/" in form else [_LINK]
        if "@" in form:
            patterns.append(_MAIL)
        if _DIGIT.search(form):
            patterns.append(_IBAN)
        written = [match.group().rstrip(_END_OF_LINK) for pattern in patterns for match in pattern.finditer(form)]
        for link in (*written, *_spread_accounts(form)):
            if not _FILE.fullmatch(link):
                distinct.setdefault(normal(link), link)
    return list(distinct.values())


def normalized(text: str) -> str:
    """Return a text without hidden characters, with the usual characters in place of variants."""
    text = _HIDDEN.sub("", text)
    if text.isascii():
        return text
    text = _HIDDEN.sub("", unicodedata.normalize("NFKC", text))
    return _DOT.sub(".", _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text))


def _spread_accounts(text: str) -> Iterator[str]:
    """Yield the account numbers in a text, even with blanks inside. A checksum excludes other text."""
    for match in _SPREAD.finditer(text):
        signs = [place for place in range(*match.span(1)) if text[place].isalnum()]
        plain = "".join(text[place] for place in signs)
        head, rest = int("".join(str(int(sign, 36)) for sign in plain[:4])), 0
        for size, sign in enumerate(plain[4:], 5):
            number = int(sign, 36)
            rest = (rest * (10 if number < 10 else 100) + number) % 97  # noqa: PLR2004 - ISO 7064, MOD 97-10
            is_whole = size >= _SHORTEST_ACCOUNT and not text[signs[size - 1] + 1 : signs[size - 1] + 2].isalnum()
            if is_whole and (rest * 10**6 + head) % 97 == 1 and len(_DIGIT.findall(plain[:size])) >= _FEWEST_DIGITS:
                yield plain[:size]


def host_of(address: str) -> str:
    """Return the host of a link or mail address in normal form; empty if the address has no host or several."""
    rest = _ANY_SCHEME.sub("", address, count=1)
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    if "@" in authority and authority == address and not _MAIL.fullmatch(address):
        return ""  # The text may list several addresses, and a tool might use only the last of them.
    return authority.rpartition("@")[2].partition(":")[0]


def domain_of(address: str) -> str:
    """Return the domain of an address; empty if mail to the address may also go elsewhere, as with `?cc=`."""
    try:
        return "" if "@" in address and not _MAIL.fullmatch(address) else host_of(address).encode("idna").decode()
    except UnicodeError:
        return ""


def site_of(address: str) -> str:
    """Return the scheme, host and port of a link as it is written; empty if programs may read the link differently."""
    match = _PLAIN_LINK.fullmatch(address)
    return match[1].lower() if match else ""


def within(text: str) -> Iterable[str]:
    """Return the values in a text, in normal form: links and their hosts, mail addresses, accounts, references."""
    # A text of a single word is itself the only value. Most fields are such texts, so this check saves time.
    return _within(text) if _SPACE_OR_PART.search(text) else ()


def _within(text: str) -> Iterator[str]:
    patterns = [_IBAN, _REFERENCE, _AMOUNT] if _DIGIT.search(text) else []
    if "." in text:
        patterns += [_LINK, _HOST]
    elif "://" in text:
        patterns.append(_LINK)
    if "@" in text:
        patterns.append(_MAIL)
    # The items of a list, and texts that follow the name of a field, are values too.
    items = (_ITEM.sub("", line).rpartition(": ")[2] for line in (text.splitlines() if "\n" in text else ()))
    yield from (normal(item) for item in items if SHORTEST <= len(item) <= _LONGEST_ITEM)
    for pattern in patterns:
        for match in pattern.finditer(text):
            value = normal(match.group().rstrip(_END_OF_LINK))
            if len(value) >= SHORTEST:
                yield value
                if "/" in value:
                    yield host_of(value)


class Leaf(NamedTuple):
    """A text or number inside a JSON value, with its JSON Pointer."""

    path: str
    value: str | float


def leaf_values(value: Any, path: str = "", names: Container[str] | None = None) -> Iterator[Leaf]:
    """Yield the texts and numbers in a JSON value. If `names` is set, yield keys that are not in `names` too."""
    if isinstance(value, dict):
        for key, item in value.items():
            below = path + pointer(key)
            if names is not None and key not in names:
                yield Leaf(below, key)
            yield from leaf_values(item, below, names)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaf_values(item, f"{path}/{index}", names)
    elif value is not None and value != "" and not isinstance(value, bool):
        yield Leaf(path, value)


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = rf"({'|'.join(_MONTHS)})[a-z]*\.?"
_DAY: Final = r"(\d{1,2})(?:st|nd|rd|th)?"
_YEAR: Final = r"(?:,? (\d{4}))?"
# Both numbers of such a date may be the month.
_SLASHED: Final = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?:(?:/|,? )(\d{4}))?(?![\d/])")
_DATES: Final = (
    (re.compile(rf"\b{_MONTH} {_DAY}\b{_YEAR}"), (3, 1, 2)),
    (re.compile(rf"\b{_DAY}(?: of)? {_MONTH}\b{_YEAR}"), (3, 2, 1)),
    (re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b"), (1, 2, 3)),
    (_SLASHED, (3, 1, 2)),
    (_SLASHED, (3, 2, 1)),
)
_SENTENCE: Final = re.compile(r"(?<=[a-z])\.(?=[A-Z])")
_TIME: Final = re.compile(r"\b(\d{1,2})(?::(\d\d)(?::00)?)?(?: ?([ap])\.?m\b|(?<=:\d\d))")
_MOMENT: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[t ](\d\d:\d\d)(?::00(?:\.0+)?)?z?)?")


def _dates(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the dates in a text as (year, month, day). The year is empty if the text does not contain it."""
    for pattern, groups in _DATES:
        for match in pattern.finditer(text):
            year, month, day = (match[group] for group in groups)
            yield year or "", _MONTHS.index(month) + 1 if month in _MONTHS else int(month), int(day)


def _times(text: str) -> Iterator[str]:
    for match in _TIME.finditer(text):
        hour = int(match[1]) % 12 + (12 if match[3] == "p" else 0) if match[3] else int(match[1])
        yield f"{hour:02d}:{match[2] or '00'}"


class Prompt:
    """The user's words, prepared for searches. Immutable."""

    __slots__ = ("_dates", "_numbers", "_parts", "_text", "_times", "_values", "_written", "words")

    def __init__(self, texts: Iterable[str]) -> None:
        # A full stop before a capital letter ends a sentence and is not part of a host.
        whole = _SENTENCE.sub(". ", "\n".join(texts))
        self._written, shown = whole, normalized(whole)
        plain = shown.casefold()
        self._text = f" {' '.join(plain.split())} "
        self._values = frozenset((*within(whole), *within(shown)))
        self._numbers = frozenset(_normal_number(match.group()) for match in _AMOUNT.finditer(plain))
        self._dates, self._times = frozenset(_dates(plain)), frozenset(_times(plain))
        self.words, self._parts = frozenset(WORD.findall(plain)), frozenset(_PART_OF_TEXT.findall(plain))

    def says(self, value: str) -> bool:
        """Return whether the user's words contain a value in normal form, but not as a part of another value."""
        if not value:
            return False
        if value[0] in "-0123456789" and is_numeric(value):
            return value in self._numbers
        if value in self._values:
            return True
        if value[0].isdigit() and (moment := _MOMENT.fullmatch(value) or _TIME.fullmatch(value)):
            return self._says_moment(moment)
        start = self._text.find(value)
        while start >= 0:
            if self._is_whole(start, start + len(value)):
                return True
            start = self._text.find(value, start + 1)
        return False

    def _says_moment(self, moment: re.Match[str]) -> bool:
        if moment.re is _TIME:
            return not self._times.isdisjoint(_times(moment[0]))
        year, month, day, time = moment.groups()
        dates = {(year, int(month), int(day)), ("", int(month), int(day))}
        return not dates.isdisjoint(self._dates) and (time is None or time in self._times)

    def names(self, value: str) -> bool:
        """Return whether the user's words contain this value and the value can identify something."""
        return names_something(value) and self.says(value)

    def spells(self, text: str) -> bool:
        """Return whether the user wrote a text with the same upper and lower case. A plain word must be in quotes."""
        if _MOMENT.fullmatch(text.lower()):
            return True
        if _NO_WORD.fullmatch(text):
            return text in self._written or not any(map(str.isalpha, text))
        quoted = rf"(?<!\w)[\"'`\u2018\u201c\u00ab]{re.escape(text)}[\"'`\u2019\u201d\u00bb](?!\w)"
        return text == text.strip() and re.search(quoted, self._written) is not None

    def has_words_of(self, text: str) -> bool:
        """Return whether a text consists of the user's words and common words only. An empty text does not."""
        parts = _PART_OF_TEXT.findall(normalized(text).casefold())
        return bool(parts) and all(part in self._parts or _FUNCTION_WORD.fullmatch(part) for part in parts)

    def numbers(self, value: str, stems: Iterable[str]) -> bool:
        """Return whether the user wrote a number after a noun with one of these stems: `ticket 7`, `file #7`."""
        noun = "|".join(map(re.escape, stems))
        number = rf"\b(?:{noun})(?:e?s|e)?(?:\W{{1,3}}(?:id|no|nr|number))?\W{{1,3}}{re.escape(value)}(?!\w|[.,:/-]\w)"
        return bool(noun) and re.search(number, self._text) is not None

    def _is_whole(self, start: int, end: int) -> bool:
        text = self._text
        before, after = text[start - 1], text[end]
        if before.isalnum() or after.isalnum() or before == "_" or after == "_":
            return False
        if before in _JOINS and text[start - 2 : start - 1].isalnum():
            return False
        return not (after in _JOINS and text[end + 1 : end + 2].isalnum())
