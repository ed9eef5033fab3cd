"""One change that a scenario should notice, whatever it changes, and its fate."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from difflib import unified_diff
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import Place
from pdp.manifest.effective import EffectiveManifest
from pdp.workbench.scenarios.files.suite import Suite

if TYPE_CHECKING:
    from pdp.workbench.mutation.search import ProposedScenario

_CONTEXT: Final = 2
_HASH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change in one place.

    Attributes:
        id: `FILE:OWNER:KIND:HASH`, stable against edits elsewhere: the hash covers the original and the changed text,
            and which of several equal ones it is.
        kind: what was done, such as `condition dropped`.
        owner: the rule, the tool, or the way to the datum.
        place: where it stands, in the author's file.
        original, changed: the text in that place.
    """

    id: str
    kind: str
    owner: str
    place: Place
    original: str
    changed: str
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegoMutant(Mutant):
    """A changed module: its path in the bundle, its package (dotted, without `data`), and its whole text."""

    module: str
    package: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestMutant(Mutant):
    """A changed effective manifest; `tool` is the only entry that differs, or None when it is not an entry."""

    manifest: EffectiveManifest
    tool: str | None

    def applied(self, suite: Suite) -> Suite:
        """Return the suite with this manifest."""
        return replace(suite, manifest=self.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMutant(Mutant):
    """Changed data: the roots `directory` and `settings`, whole."""

    data: dict[str, Any]

    def applied(self, suite: Suite) -> Suite:
        """Return the suite with this data."""
        return replace(suite, data=self.data)


class Fate(StrEnum):
    """What happened to a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One mutant's fate.

    Attributes:
        by: of a killed one, the scenario that fails, as `FILE:LINE name`; of an invalid one, why; of an equivalent one,
            the reason that was stated; else None.
        unnoticed: of a survivor, how many recorded requests are decided differently, in what no expectation names.
        proposal: of a survivor, the scenario that would kill it, or what was searched; None when nobody searched.
    """

    mutant: Mutant
    fate: Fate
    by: str | None = None
    unnoticed: int = 0
    proposal: ProposedScenario | None = None


class Identities:
    """Gives each mutant of one file its identity; equal changes of one owner are counted in their order."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._seen: Counter[tuple[str, ...]] = Counter()

    def of(self, owner: str, kind: str, original: str, changed: str, *, about: str | None = None) -> dict[str, str]:
        """Return these fields of a mutant with its identity; `about` tells it apart instead of the original text."""
        change = (owner, kind, " ".join((about or original).split()), " ".join(changed.split()))
        self._seen[change] += 1
        digest = hashlib.sha256("\0".join((*change, str(self._seen[change]))).encode()).hexdigest()
        identity = f"{self._file}:{owner}:{kind.replace(' ', '-')}:{digest[:_HASH]}"
        return {"id": identity, "kind": kind, "owner": owner, "original": original, "changed": changed}


def file_name(file: Path) -> str:
    """Return a name for a file of the user's that is stable wherever the command is run: its folder's and its own."""
    return f"{file.resolve().parent.name}/{file.name}"


def difference(file: str, before: str, after: str) -> str:
    """Return the change of a text as a unified diff, without a line feed at its end."""
    lines = unified_diff(before.splitlines(), after.splitlines(), file, f"{file} (mutant)", n=_CONTEXT, lineterm="")
    return "\n".join(lines)
