"""The session: verified claims, facts and other data of a call that never come from the model.

The claims are the verified content of the caller's token; this package does not verify tokens. Subject, markings and
approvals are never taken from a tool's arguments.

Nobody may approve their own call, and a quorum needs different people (design, Approvals). Two names that look alike
therefore count as the same person.
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
# The maximum number of characters of all prompts together. A longer text is assumed to be a document and not the user's
# own words.
LONGEST_PROMPT: Final = 256 * 1024
# The scripts whose letters names may contain besides ASCII. A script is the first word of a letter's Unicode name. Of
# LATIN, only ASCII letters with an accent and a few that resemble no other letter are allowed.
_SCRIPTS: Final = frozenset((
    "ARABIC", "BENGALI", "CJK", "CYRILLIC", "DEVANAGARI", "GREEK", "HANGUL", "HEBREW", "HIRAGANA", "KATAKANA", "LATIN",
    "TAMIL", "TELUGU", "THAI",
))  # fmt: skip
_TOGETHER: Final = frozenset(("CJK", "HANGUL", "HIRAGANA", "KATAKANA"))
_LATIN: Final = frozenset("ßæœøłđðþÆŒØŁĐÐÞ")
_LETTERS: Final = frozenset(("Ll", "Lo", "Lu", "Mc", "Mn"))
# Characters that can be mistaken for others (UTS 39, confusables), in Cyrillic, in Greek and in ASCII itself.
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
    """A person or an agent as named by a token: `sub`, unique for its issuer `iss` (None: no issuer)."""

    iss: str | None
    sub: str

    def may_be(self, other: Person) -> bool:
        """Return whether two names may mean one person: `sub`s look alike, and so do `iss`s, if both exist."""
        if _looks(self.sub).isdisjoint(_looks(other.sub)):
            return False
        return not self.iss or not other.iss or not _looks(self.iss, "/").isdisjoint(_looks(other.iss, "/"))


def is_plain_name(text: str) -> bool:
    """Return whether a name is hard to mistake for another: printable NFC, no outer blanks, letters of one script."""
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
    """The data of a call that the application, not the model, provides. Immutable, nested objects and lists included.

    `with_changes` returns a changed copy. Malicious code in the same process can still change a session.

    Args:
        claims: verified token claims. `sub` is required. Scopes are in `emts` (`{scope: true}`, only literal true
            counts) and `scope` (a string, separated by blanks). Optional claims are `clearances`, `roles`, `limits`
            (`{name: number}`), `entitlements` (`{corpora, documents}`), and `act`, the acting agent
            (`{sub, scopes, ...}`, may be nested).
        purpose: the purpose of the run, such as `payments.supplier`.
        facts: results of earlier tools and other facts about resources, read by the manifest's mappings.
        idempotency_key: identifies this call, if the manifest requires a key.
        run_id: identifies one task of an agent.
        request_id: identifies one request to the agent.
        agent: the agent's id, such as `agent:payments`, for manifests that pin tool versions.
        prompt: the user's own words in this run, never the model's.
        home_domains: domains whose mail addresses belong to the user's organisation.
        plan: the agent's whole plan, a list of proposals.
        state: the state of tools, as an object.
        config: the configuration of tools, as an object.
        time: the time of the call, RFC 3339 in UTC with `Z`; by default the current time.

    Raises:
        ValidationError: a field is unknown, mistyped or not JSON (`Session.read` raises `UsageError` instead).

    Examples:
        >>> session = Session(claims={"sub": "officer-123", "scope": "payments.lookup"}, purpose="payments.supplier")
        >>> session.subject.properties["scopes"]
        ['payments.lookup']
        >>> session.with_changes(purpose="payments.refund").purpose
        'payments.refund'
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
        """Validate the fields. A session that is already initialised cannot be changed by a second call."""
        if self.__dict__:
            read_only()
        super().__init__(**fields)

    # This attribute is set because pydantic would otherwise call `__init__` for every object that it validates.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    # Assignments to cached properties are rejected here, because pydantic does not treat them as fields and would allow
    # them.
    __setattr__ = __delattr__ = __setstate__ = read_only

    @field_validator("claims", "facts", "plan", "state", "config", mode="plain")
    @classmethod
    def _own_copy(cls, value: Any, field: ValidationInfo) -> Any:
        if not isinstance(value, list if field.field_name == "plan" else dict):
            raise PydanticKnownError("list_type" if field.field_name == "plan" else "dict_type")
        # The depth is limited by two less than in a request, because the request nests claims two levels deeper.
        check_json(value, depth=2)
        # The session is copied, so that its data stays unchanged during a decision. The copy is read-only, because a
        # guarded tool gets the session through `using` and could otherwise change the decision about its next call.
        return frozen(orjson.loads(canonical(value)))

    @field_validator("purpose", "idempotency_key", "run_id", "request_id", "agent")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        check_json(value)
        if value is not None and len(value) > LONGEST_TEXT:
            raise ValueError(f"has {len(value)} characters, but at most {LONGEST_TEXT} are allowed")
        return value

    @field_validator("prompt", "home_domains", mode="plain")
    @classmethod
    def _texts(cls, value: Any, field: ValidationInfo) -> Any:
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            raise ValueError("is not a list of strings" + (", such as [the text]" if isinstance(value, str) else ""))
        if (length := sum(map(len, value))) > LONGEST_PROMPT:
            raise ValueError(f"has {length} characters, but at most {LONGEST_PROMPT} are allowed")
        check_json(list(value), depth=2)
        return frozen([_home_domain(text) for text in value] if field.field_name == "home_domains" else list(value))

    @field_validator("time")
    @classmethod
    def _check_time(cls, value: str | None) -> str | None:
        if value is not None and not is_time(value):
            raise ValueError("is not a time such as 2026-07-01T10:00:00Z")
        return value

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return `value` as a session.

        Args:
            value: a `Session`, or an object with its fields.

        Raises:
            UsageError: no session, or a field is unknown, mistyped or not JSON.

        Examples:
            >>> Session.read({"claims": {"sub": "officer-123"}, "purpos": "payments"})
            Traceback (most recent call last):
            pdp.errors.UsageError: session: purpos: Extra inputs are not permitted
        """
        if isinstance(value, cls):
            return value
        if value is None:
            raise UsageError(
                "the call has no session", hint="open a session with `with pep.using(session)`, or pass one"
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(part) for part in first["loc"]) or "session"
            raise UsageError(f"session: {at}: {first['msg']}") from None

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy of the session with some fields changed.

        Raises:
            UsageError: a field is unknown, mistyped or not JSON.
        """
        return type(self).read({**self._fields(), **changes})

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def __deepcopy__(self, _: object = None) -> Self:
        return self.with_changes()

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).read, (self._fields(),)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return a validated copy with the fields in `update` changed; cached properties are computed again."""
        return self.with_changes(**(update or {}))

    @cached_property
    def subject(self) -> Entity:
        """The subject of the request, taken from the claims alone.

        Raises:
            UsageError: `sub` is missing or not a non-empty string, or a name can be mistaken for another name.
        """
        sub = self.claims.get("sub")
        if not isinstance(sub, str) or not sub:
            wrong = "missing" if sub is None else "not text" if not isinstance(sub, str) else "empty"
            raise UsageError(f"session: claims.sub is {wrong}, but a decision needs a subject")
        for at, name in _names(self.claims):
            if not is_plain_name(name):
                raise UsageError(
                    f"session: {at} is {name!r:.60}, which can be mistaken for another name",
                    hint="name people in letters of one script, in NFC and without blanks at the ends",
                )
        properties: dict[str, Any] = {"scopes": _scopes(self.claims)}
        # The policy checks the types of these claims and denies the request if a type is wrong, so the types are not
        # checked here.
        properties |= {name: self.claims[name] for name in _FROM_CLAIMS if name in self.claims}
        if self.claims.get("act") is not None:
            properties["act"] = self.claims["act"]
        return Entity(type="user", id=sub, properties=frozen(properties))

    @property
    def issuer(self) -> str:
        """The claim `iss`; the empty string if it is absent."""
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else ""

    @cached_property
    def caller(self) -> str:
        """The claims `iss` and `sub` as one text, under which the caller's runs, keys and actions are stored."""
        return canonical([self.issuer, str(self.claims.get("sub"))]).decode()

    @cached_property
    def variables(self) -> FrozenObject:
        """The fields that the manifest's expressions read as `session`, without those that are None."""
        return FrozenObject({name: value for name, value in self._fields().items() if value is not None})


def _home_domain(text: str) -> str:
    try:
        domain = text.strip().rstrip(".").encode("idna").decode().lower()
    except UnicodeError:
        domain = ""
    if not _DOMAIN.fullmatch(domain) or domain in _PUBLIC_MAIL:
        why = "is a public mail provider" if domain in _PUBLIC_MAIL else "is not a domain such as example.com"
        raise ValueError(f"{text!r:.60}: {why}")
    return domain


def _names(claims: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each string `sub` and `iss` in the claims. The policy checks values of other types."""
    at: str = "claims"
    actor: Any = claims
    while isinstance(actor, dict):
        for field in ("sub", "iss"):
            if isinstance(actor.get(field), str) and actor[field]:
                yield f"{at}.{field}", actor[field]
        at, actor = f"{at}.act", actor.get("act")


def _scopes(claims: dict[str, Any]) -> list[str]:
    scopes: set[str] = set()
    entitlements, scope = claims.get("emts"), claims.get("scope")
    if isinstance(scope, str):
        scopes |= {name for name in scope.split(" ") if name}
    if isinstance(entitlements, dict):
        for name in scopes:
            if entitlements.get(name) is False:
                _warn_ignored(name)
        scopes |= {name for name, granted in entitlements.items() if granted is True}
    return sorted(scopes)


@lru_cache(1000)  # The cache prevents that a warning is logged twice.
def _warn_ignored(scope: str) -> None:
    _log.warning("a claim was ignored: emts: %.128r is false, but the claim scope grants it", scope)
