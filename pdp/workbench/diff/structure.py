"""Compare the rules, the data and the manifests of two bundles."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

from pdp.engine.bundle.file import Bundle
from pdp.json import canonical, digest
from pdp.manifest.diff import ContentChange, Direction
from pdp.workbench.diff.policies import BundlePair, rule_changes
from pdp.workbench.proof.answers import Word

_ROOTS: Final = ("config", "directory", "settings")
_ABSENT: Final = object()
_ID: Final = 12
"""The number of hexadecimal digits in the id of a difference."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The prover's answer about a changed rule. `term` names the unproved part, `request` is a wider call.

    `call` describes the wider call if the bundles decide no call less strictly on their own data.
    """

    word: Word
    term: str = ""
    request: bytes | None = None
    call: str = ""

    @property
    def text(self) -> str:
        """The answer as it is shown to people."""
        return {
            "equal": "equal (proved)",
            "narrower": "narrower (proved)",
            "wider": "wider",
            "bounded": "no counter-example with up to two elements",
            "not proved": f"not proved: {self.term}",
        }[self.word]


@dataclass(frozen=True)
class Structure:
    """The changes of rules, of manifests and their entries, and of data (configuration, directory and settings).

    `proofs` has the prover's answers about changed rules, by the name of the change.
    """

    rules: tuple[ContentChange, ...]
    manifests: tuple[ContentChange, ...]
    data: tuple[ContentChange, ...]
    proofs: Mapping[str, Proof] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[ContentChange, ...]:
        """All changes: of rules, manifests and data."""
        return (*self.rules, *self.manifests, *self.data)

    def proved(self, *words: Word) -> frozenset[str]:
        """Return the names of the changed rules with one of these answers."""
        return frozenset(name for name, proof in self.proofs.items() if proof.word in words)

    @property
    def settled(self) -> frozenset[str]:
        """The names of the changed rules whose effect no decided call has to show, because the prover shows it."""
        wider = (name for name, proof in self.proofs.items() if proof.call)
        return self.proved("equal", "narrower").union(wider)

    @property
    def effective(self) -> tuple[ContentChange, ...]:
        """The changes that may change a decision: all but those of rules that are proved to be equal."""
        equal = self.proved("equal")
        return (*(change for change in self.rules if change.name not in equal), *self.manifests, *self.data)

    @cached_property
    def digest(self) -> str:
        """The digest of all changes. Ids of differences include it, so an id is valid only for these two bundles."""
        return digest(canonical([[change.name, change.old, change.new] for change in self.changes]))

    def id_of(self, *difference: Any) -> str:
        """Return an id by which an explanation names a difference. The id is valid only for these two bundles."""
        # The id begins with a letter, so that YAML does not read it as a number.
        return "d" + digest(canonical([self.digest, *difference])).removeprefix("sha256:")[:_ID]

    def loosenings(self) -> dict[str, str]:
        """Return the text of each change that admits more calls, by the id of the change."""
        harmless = self.proved("equal", "narrower")
        rules = (change for change in self.rules if change.name not in harmless)
        wider = {
            self.id_of("proof", name): f"{name}: {proof.call}" for name, proof in self.proofs.items() if proof.call
        }
        return wider | {
            self.id_of("structure", change.name, change.what, change.old, change.new): change.line
            for change in (*rules, *self.manifests, *self.data)
            if change.direction is Direction.LOOSENS
        }

    def as_json(self) -> dict[str, Any]:
        """Return the changes as plain JSON, which is a stable interface."""
        plain = {name: [asdict(change) for change in getattr(self, name)] for name in ("rules", "manifests", "data")}
        proofs = {name: proof.text for name, proof in self.proofs.items()}
        return plain | {
            "proofs": proofs,
            "loosenings": [{"id": name, "what": what} for name, what in self.loosenings().items()],
        }


def structure_of(pair: BundlePair) -> Structure:
    """Return the changes of rules, manifests and data between two bundles."""
    return Structure(rule_changes(pair), tuple(pair.manifests.changes()), data_changes(*pair.bundles))


def data_changes(old: Bundle, new: Bundle) -> tuple[ContentChange, ...]:
    """Return each changed path of configuration, directory and settings. The name of the bundle is ignored."""
    return tuple(change for _, change in changed_data(old, new))


def changed_data(old: Bundle, new: Bundle) -> Iterator[tuple[tuple[str, ...], ContentChange]]:
    """Yield each changed path of configuration, directory and settings as a list of keys, with its change."""
    return _changes(_data(old), _data(new), ())


def _data(bundle: Bundle) -> dict[str, Any]:
    data = {root: bundle.data[root] for root in _ROOTS if root in bundle.data}
    if isinstance(config := data.get("config"), dict):
        data["config"] = {key: value for key, value in config.items() if key != "bundle"}
    return data


def _changes(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ContentChange]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _changes(old.get(key, _ABSENT), new.get(key, _ABSENT), (*path, key))
        return
    if old is new or (old == new and type(old) is type(new)):
        return
    kind = "added" if old is _ABSENT else "removed" if new is _ABSENT else "changed"
    before, after = (None if value is _ABSENT else value for value in (old, new))
    yield path, ContentChange(".".join(path), _direction(path, old, new), before, after, kind)


def _direction(path: tuple[str, ...], old: Any, new: Any) -> Direction:
    # The policies read these paths of the directory; see docs/explanation/baseline.md.
    match path:
        case ("directory", "entitlements", *_):
            return _of_sets(old, new, more=Direction.LOOSENS)
        case ("directory", "corpora" | "documents", _, "markings"):
            return _of_sets(old, new, more=Direction.TIGHTENS) if old is not _ABSENT else Direction.UNCLEAR
        case ("directory", "documents", _, "restricted"):
            restricted = Direction.LOOSENS if old is True else Direction.UNCLEAR
            # A record with another value is unreadable and denies every call, so `true` may allow calls.
            return Direction.TIGHTENS if new is True and old in (False, _ABSENT) else restricted
        case ("directory", "planning") | ("directory", "planning", _) if old is _ABSENT or new is _ABSENT:
            return Direction.TIGHTENS if old is _ABSENT else Direction.LOOSENS
        case ("config", "required_concerns") if old is not _ABSENT:  # A bundle without the list denies every call.
            return _of_sets(old, new, more=Direction.TIGHTENS)
    return Direction.UNCLEAR


def _of_sets(old: Any, new: Any, *, more: Direction) -> Direction:
    """Return whether a changed list of names loosens or tightens the policy. A mapping of lists counts as one list."""
    before, after = _members(old), _members(new)
    if before is None or after is None or before == after:
        return Direction.UNCLEAR
    return more if before < after else more.opposite if after < before else Direction.UNCLEAR


def _members(value: Any) -> set[str] | None:
    if value is _ABSENT:
        return set()
    if isinstance(value, dict):
        parts = [_members(item) for item in value.values()]
        return None if None in parts else {member for part in parts if part for member in part}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return set(value)
    return None
