"""Somebody, as a token names them, and whether two tokens may name the same person.

Who asks must not be who approves, and a quorum is of different people (design, Approvals): in doubt, two names that
look alike are one person.
"""

from __future__ import annotations

import unicodedata
from typing import Final, NamedTuple

_HIDDEN: Final = frozenset(("Cc", "Cf", "Co", "Cn", "Zl", "Zp"))


def is_plain_name(text: str) -> bool:
    """Return whether a name is written so that no other text looks the same by accident.

    Not empty, in Unicode's composed form (NFC), without blanks at its ends, and without control or invisible letters.
    """
    return (
        bool(text)
        and unicodedata.is_normalized("NFC", text)
        and text == text.strip()
        and not any(unicodedata.category(letter) in _HIDDEN for letter in text)
    )


class Person(NamedTuple):
    """Somebody, as a token names them: `sub`, which is unique for one issuer `iss` (None: not stated)."""

    iss: str | None
    sub: str

    def may_be(self, other: Person) -> bool:
        """Return whether both can be the same person.

        Equal `sub`, upper and lower case being the same, and no two issuers that differ; a slash at an issuer's end and
        its case make no difference.
        """
        if _folded(self.sub) != _folded(other.sub):
            return False
        return not self.iss or not other.iss or _issuer(self.iss) == _issuer(other.iss)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _issuer(text: str) -> str:
    return _folded(text).rstrip("/")
