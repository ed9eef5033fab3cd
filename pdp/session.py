"""Who calls, for whom and about what: everything that never comes from the model.

The claims are the verified content of the caller's token; this package does not verify tokens. Nothing about the
subject, markings or approvals is ever taken from a tool's arguments.

Who asks must not be who approves, and a quorum is of different people (design, Approvals): in doubt, two names that
look alike are one person.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from pdp.clock import is_time
from pdp.errors import UsageError
from pdp.json import FrozenList, FrozenObject, canonical, check_json, frozen, read_only
from pdp.request import Entity

_log = logging.getLogger("pdp.pep")
_FROM_CLAIMS: Final = ("clearances", "roles", "limits", "entitlements", "iss")
LONGEST_TEXT: Final = 1024
LONGEST_PROMPT: Final = 256 * 1024  # all of its texts together; what is longer is a document, and no words of a user
# Letters that names are made of, beside ASCII: of these scripts, by the first word of a letter's name in Unicode. Latin
# letters are those that ASCII is in, with an accent, and a few that look like no other.
_SCRIPTS: Final = frozenset((
    "ARABIC", "BENGALI", "CJK", "CYRILLIC", "DEVANAGARI", "GREEK", "HANGUL", "HEBREW", "HIRAGANA", "KATAKANA", "LATIN",
    "TAMIL", "TELUGU", "THAI",
))  # fmt: skip
_TOGETHER: Final = frozenset(("CJK", "HANGUL", "HIRAGANA", "KATAKANA"))
_LATIN: Final = frozenset("ßæœøłđðþÆŒØŁĐÐÞ")
_LETTERS: Final = frozenset(("Ll", "Lo", "Lu", "Mc", "Mn"))
# What a whole name can be made of that looks like another one (UTS 39, confusables): Cyrillic, Greek, and ASCII itself.
_LOOK_ALIKES: Final = str.maketrans(
    "АВЕЅІЈКМНОРСТУХҮԚԜѴԀҺӀаеѕіјорсухүԁһԛԝѵӏгпкмтвньΑΒΕΖΗΙΚΜΝΟΡΤΥΧαβγεηικνορστυχωiI1|0",  # noqa: RUF001
    "ABESlJKMHOPCTYXYQWVDHlaesljopcyxydhqwvlrnkmtbhbABEZHlKMNOPTYXabyenlkvopotuxwllllo",
)
_DOMAIN: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{1,62}")
_PUBLIC_MAIL: Final = frozenset((
    "163.com", "aol.com", "fastmail.com", "gmail.com", "gmx.com", "gmx.de", "gmx.net", "googlemail.com", "hey.com",
    "hotmail.com", "icloud.com", "live.com", "mac.com", "mail.com", "mail.ru", "me.com", "msn.com", "outlook.com",
    "pm.me", "proton.me", "protonmail.com", "qq.com", "t-online.de", "tutanota.com", "web.de", "yahoo.com",
    "yandex.com", "yandex.ru",
))  # fmt: skip


class Person(NamedTuple):
    """A person or an agent, as a token names them: `sub`, which is unique for one issuer `iss` (None: not stated)."""

    iss: str | None
    sub: str

    def may_be(self, other: Person) -> bool:
        """Return whether both can be the same person: subs that look the same, and no two issuers that differ.

        Upper and lower case are the same, and a slash at an issuer's end makes no difference.
        """
        if _looks(self.sub).isdisjoint(_looks(other.sub)):
            return False
        return not self.iss or not other.iss or not _looks(self.iss, "/").isdisjoint(_looks(other.iss, "/"))


def is_plain_name(text: str) -> bool:
    """Return whether a name is in NFC, without blanks at its ends, of printable ASCII and letters of one script."""
    if not text or text != text.strip() or not unicodedata.is_normalized("NFC", text):
        return False
    if text.isascii():
        return text.isprintable()
    scripts = {_script(letter) for letter in text if not letter.isascii() or letter.isalpha()}
    printable = all(letter.isprintable() for letter in text if letter.isascii())
    return printable and scripts <= _SCRIPTS and (len(scripts) <= 1 or scripts <= _TOGETHER)


def _script(letter: str) -> str:
    script = unicodedata.name(letter, "").partition(" ")[0]
    if unicodedata.category(letter) not in _LETTERS:
        return ""
    is_plain = script != "LATIN" or letter in _LATIN or unicodedata.normalize("NFD", letter)[0].isascii()
    return script if is_plain else ""


def _looks(text: str, end: str = "") -> set[str]:
    plain = unicodedata.normalize("NFKC", text)
    looks = (plain.translate(_LOOK_ALIKES).casefold(), plain.casefold().translate(_LOOK_ALIKES))
    return {look.rstrip(end).replace("rn", "m") for look in looks}


class Session(BaseModel):
    """The application's half of a call. Immutable, as are the objects and lists in it: `with_changes` gives a new one.

    That holds for what its methods do, and for a copy. Python lets a tool in the same process reach behind them.

    Args:
        claims: verified token claims: `sub`; `emts` (`{scope: true}`, only literal true counts) and `scope` (a string
            of scopes separated by blanks); `clearances`, `roles`, `limits` (`{name: number}`), `entitlements`
            (`{corpora, documents}`), and `act`, the acting agent (`{sub, scopes, ...}`, nested likewise).
        purpose: what the run is for, such as `payments.supplier`.
        facts: results of earlier tools and other facts about resources, read by the manifest's mappings.
        idempotency_key: names this call, where the manifest demands that.
        run_id: one task of an agent; request_id: one request to it.
        agent: the agent's id, such as `agent:payments`, for manifests that pin tool versions.
        prompt: the user's own words in this run, never the model's; home_domains: domains whose addresses are theirs.
        plan: the whole plan, a list of proposals; state, config: for the tool's own use.
        time: RFC 3339 in UTC with `Z`; the clock's when absent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    claims: dict[str, Any]
    purpose: str | None = None
    facts: dict[str, Any] = Field(default_factory=FrozenObject)
    idempotency_key: str | None = None
    run_id: str | None = None
    request_id: str | None = None
    agent: str | None = None
    prompt: list[str] = Field(default_factory=FrozenList)
    home_domains: list[str] = Field(default_factory=FrozenList)
    plan: list[Any] = Field(default_factory=FrozenList)
    state: dict[str, Any] = Field(default_factory=FrozenObject)
    config: dict[str, Any] = Field(default_factory=FrozenObject)
    time: str | None = None

    def __init__(self, **fields: Any) -> None:
        """Read the fields, or raise pydantic's ValidationError; a session that has its fields gets no others."""
        if self.__dict__:
            read_only()
        super().__init__(**fields)

    # Without the mark, pydantic would call it for each object that is validated.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    # What is made of the fields, and kept, is not a field: pydantic would let it be set.
    __setattr__ = __delattr__ = __setstate__ = read_only

    @field_validator("claims", "facts", "plan", "state", "config", mode="plain")
    @classmethod
    def _own_copy(cls, value: Any, field: ValidationInfo) -> Any:
        if not isinstance(value, list if field.field_name == "plan" else dict):
            raise PydanticKnownError("list_type" if field.field_name == "plan" else "dict_type")
        # Depth 2: in the request, claims stand two levels deeper than in the session.
        check_json(value, depth=2)
        # A copy, so that nobody changes what was decided on while it is decided on; and read-only, as whoever is handed
        # a session, such as a guarded tool through `using`, would else decide its next call.
        return frozen(orjson.loads(canonical(value)))

    @field_validator("purpose", "idempotency_key", "run_id", "request_id", "agent")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        check_json(value)
        if value is not None and len(value) > LONGEST_TEXT:
            raise ValueError(f"has {len(value)} characters, at most {LONGEST_TEXT} are admitted")
        return value

    @field_validator("prompt", "home_domains", mode="plain")
    @classmethod
    def _texts(cls, value: Any, field: ValidationInfo) -> Any:
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            raise ValueError("is not a list of texts" + (", such as [the text]" if isinstance(value, str) else ""))
        if (length := sum(map(len, value))) > LONGEST_PROMPT:
            raise ValueError(f"has {length} characters, at most {LONGEST_PROMPT} are admitted")
        check_json(list(value), depth=2)
        return frozen([_home_domain(text) for text in value] if field.field_name == "home_domains" else list(value))

    @field_validator("time")
    @classmethod
    def _a_time(cls, value: str | None) -> str | None:
        if value is not None and not is_time(value):
            raise ValueError("is not a time such as 2026-07-01T10:00:00Z")
        return value

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return `value` as a session: one already, or the object that it stands for.

        Raises:
            UsageError: a field is unknown, mistyped or not JSON.
        """
        if isinstance(value, cls):
            return value
        if value is None:
            raise UsageError("no session is given", hint="open one with `with pep.using(session)`, or pass it")
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(part) for part in first["loc"]) or "session"
            raise UsageError(f"session: {at}: {first['msg']}") from None

    def with_changes(self, **changes: Any) -> Self:
        """Return a session with some fields changed; errors as of `read`."""
        return type(self).read({**self._fields(), **changes})

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def __deepcopy__(self, _: object = None) -> Self:
        return self.with_changes()

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).read, (self._fields(),)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return a session with what is updated, checked, and nothing that was made of the old one."""
        return self.with_changes(**(update or {}))

    @cached_property
    def subject(self) -> Entity:
        """The request's subject, made of the claims alone.

        Raises:
            UsageError: no `sub`, or one that is not a non-empty string.
        """
        sub = self.claims.get("sub")
        if not isinstance(sub, str) or not sub:
            wrong = "missing" if sub is None else "not text" if not isinstance(sub, str) else "empty"
            raise UsageError(f"session: claims.sub is {wrong}: no subject, no decision")
        for at, name in _names(self.claims):
            if not is_plain_name(name):
                raise UsageError(
                    f"session: {at} is {name!r:.60}: another text looks the same",
                    hint="name people in letters of one script, in NFC and without blanks at the ends",
                )
        properties: dict[str, Any] = {"scopes": _scopes(self.claims)}
        # Passed on as they are: the policy refuses the request when one of them has another type.
        properties |= {name: self.claims[name] for name in _FROM_CLAIMS if name in self.claims}
        if self.claims.get("act") is not None:
            properties["act"] = self.claims["act"]
        return Entity(type="user", id=sub, properties=frozen(properties))

    @property
    def issuer(self) -> str:
        """The claim `iss`; empty when there is none."""
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else ""

    @cached_property
    def caller(self) -> str:
        """Who calls (claims `iss` and `sub`) as one text: what one caller has staged, or read, is not another's."""
        return canonical([self.issuer, str(self.claims.get("sub"))]).decode()

    @cached_property
    def variables(self) -> FrozenObject:
        """What a manifest's expressions see as `session`; a field that is not set is not there."""
        return FrozenObject({name: value for name, value in self._fields().items() if value is not None})


def _home_domain(text: str) -> str:
    try:
        domain = text.strip().rstrip(".").encode("idna").decode().lower()
    except UnicodeError:
        domain = ""
    if not _DOMAIN.fullmatch(domain) or domain in _PUBLIC_MAIL:
        why = "anybody has an address there" if domain in _PUBLIC_MAIL else "is not a domain such as example.com"
        raise ValueError(f"{text!r:.60}: {why}")
    return domain


def _names(claims: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The names of people and agents in the claims, with their places; the policy refuses those of another type."""
    at: str = "claims"
    actor: Any = claims
    while isinstance(actor, dict):
        for field in ("sub", "iss"):
            if isinstance(actor.get(field), str) and actor[field]:
                yield f"{at}.{field}", actor[field]
        at, actor = f"{at}.act", actor.get("act")


def _scopes(claims: dict[str, Any]) -> list[str]:
    held: set[str] = set()
    entitlements, scope = claims.get("emts"), claims.get("scope")
    if isinstance(scope, str):
        held |= {name for name in scope.split(" ") if name}
    if isinstance(entitlements, dict):
        for name in held:
            if entitlements.get(name) is False:
                _say_ignored(name)
        held |= {name for name, granted in entitlements.items() if granted is True}
    return sorted(held)


@lru_cache(1000)  # each of them is said once
def _say_ignored(scope: str) -> None:
    _log.warning("a claim was ignored: emts: %.128r is false, and the claim scope grants it", scope)
