"""The index of a bundle repository: which bundles there are, which one a channel decides by, and how that came about.

    index.json                  this, replaced as a whole
    bundles/<digest>.tar.gz     each bundle by the SHA-256 of its file, never changed
    channels/<channel>.tar.gz   a copy of the channel's current bundle, for OPA's bundle plugin

The index pins the SHA-256 of each file, so what is read is what was published. It says nothing about who published:
that is the bundles' signatures' matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from pdp.engine.bundle.file import MAX_BUNDLE
from pdp.errors import BundleError
from pdp.json import MAX_NUMBER, JsonValueError, canonical, parse_json

if TYPE_CHECKING:
    from pdp.engine.bundle.file import Bundle

FORMAT: Final = 1
"""The layout above."""

INDEX: Final = "index.json"
"""Where the index stands in a repository."""

MAX_INDEX: Final = 32 * 1024 * 1024
"""Largest index in bytes; enough for some 50,000 releases."""

CHANNELS: Final = ("stable", "canary")
"""What engines follow: the release for all, and the one that some try first."""

Channel = Literal["stable", "canary"]
Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Published(_Record):
    """One bundle in the repository.

    Attributes:
        release: its number; no two have the same.
        revision: digest of its content. Two have the same when one content was released anew.
        digest: of its file.
        size: of its file, in bytes.
        key_id: who signed it; None: unsigned.
    """

    release: Number
    revision: Sha256
    digest: Sha256
    size: Annotated[int, Field(ge=1, le=MAX_BUNDLE)]
    key_id: str | None

    @property
    def path(self) -> str:
        """Where its file stands in the repository."""
        return f"bundles/{self.digest.removeprefix('sha256:')}.tar.gz"


class Change(_Record):
    """One change of a channel.

    Attributes:
        sequence: counts the changes of all channels from 1; their order, whatever clocks say.
        time: as the clock of whoever changed it said, RFC 3339.
        action: a bundle was published, or an older content released anew.
        channel: what was changed.
        release: what it decides by since.
        digest: likewise.
        previous_release: what it decided by before, None at first.
        restores: of a rollback, the release whose content came back.
        by: who did it.
        why: for people.
        gate: what the release gate found, as it was given; None: nobody asked it.
    """

    sequence: Number
    time: str
    action: Literal["publish", "rollback"]
    channel: Channel
    release: Number
    digest: Sha256
    previous_release: Number | None
    restores: Number | None
    by: Text
    why: Text
    gate: dict[str, JsonValue] | None


class Index(_Record):
    """The whole of it.

    Attributes:
        format: of this file.
        channels: the digest of each channel's current bundle.
        bundles: in the order of their release numbers.
        history: in the order of their sequence numbers.
    """

    format: Literal[1] = FORMAT
    channels: dict[Channel, Sha256] = {}
    bundles: tuple[Published, ...] = ()
    history: tuple[Change, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        releases = [each.release for each in self.bundles]
        if sorted(set(releases)) != releases:
            raise ValueError("bundles are not in the order of their release numbers, each of which stands once")
        digests = {each.digest: each.release for each in self.bundles}
        if len(digests) != len(releases):
            raise ValueError("one file is there as two releases")
        if [each.sequence for each in self.history] != list(range(1, len(self.history) + 1)):
            raise ValueError("changes are missing in the history, or out of order")
        if any(digests.get(each.digest) != each.release for each in self.history):
            raise ValueError("the history names a release that is not there")
        last = {each.channel: each.digest for each in self.history}
        if last != self.channels:
            raise ValueError("the channels are not as the history left them")
        return self

    def current(self, channel: Channel) -> Published | None:
        """Return what a channel decides by, or None before anything was published there."""
        digest = self.channels.get(channel)
        return next((each for each in self.bundles if each.digest == digest), None)

    def to_bytes(self) -> bytes:
        """Return the index as it is written."""
        return canonical(self.model_dump())


def record_of(bundle: Bundle) -> Published:
    """Return what the index has to say of a bundle."""
    return Published(
        release=bundle.release,
        revision=bundle.revision,
        digest=bundle.digest,
        size=bundle.size,
        key_id=None if bundle.signature is None else bundle.signature.key_id,
    )


def check_record(published: Published, bundle: Bundle) -> None:
    """Check that the index says of a bundle what it is.

    Raises:
        BundleError: it says something else, which is no fault of the bundle.
    """
    has = record_of(bundle)
    wrong = [name for name in Published.model_fields if getattr(has, name) != getattr(published, name)]
    if wrong:
        raise BundleError(
            f"the index gives it another {' and '.join(wrong)} than it has", hint=f"restore {INDEX} from a copy"
        )


def parse_index(content: bytes, name: str) -> Index:
    """Return the index that a file holds. `name` says where it comes from, for messages.

    Raises:
        BundleError: it is none, or contradicts itself.
    """
    try:
        document: Any = parse_json(content)
    except JsonValueError as error:
        raise BundleError(f"{name}: {error}", hint="is this the index of a bundle repository?") from error
    found = document.get("format") if isinstance(document, dict) else None
    if isinstance(document, dict) and (type(found) is not int or found != FORMAT):
        shown = "no format that is known" if type(found) is not int else f"format {found}"
        raise BundleError(
            f"{name}: {shown}, this program reads format {FORMAT}",
            hint="update this program to the repository's",
        )
    try:
        return Index.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        at = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise BundleError(
            f"{name}: {f'{at}: ' if at else ''}{said}", hint="restore it from a copy; bundles are still there"
        ) from error
