"""A mutant, which is a change that a scenario should detect, and the result of testing it."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from difflib import unified_diff
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pdp.errors import Place
from pdp.manifest.effective import EffectiveManifest
from pdp.opa.rules import statements
from pdp.workbench.scenarios.files.suite import Suite

_CONTEXT: Final = 2
_HASH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A policy, manifest or data with one change. `owner` is the changed rule, the tool, or the path in the data.

    `id` is `FILE:OWNER:KIND:HASH`. It does not depend on line numbers: the hash covers the original and the changed
    text, and a number that distinguishes equal changes.
    """

    id: str
    kind: str
    owner: str
    place: Place
    original: str
    changed: str
    diff: str

    @property
    def rule(self) -> tuple[int, str]:
        """The line of the changed rule, or 0 if it is no rule, and its name for a person."""
        return 0, self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class RegoMutant(Mutant):
    """A changed Rego module: its path in the bundle, its package (with dots, without `data`), and its complete text."""

    module: str
    package: str
    text: str

    @property
    def rule(self) -> tuple[int, str]:
        """The line of the rule's head, and the rule's reason code or else its name."""
        above = [statement for statement in statements(self.text) if statement.line <= self.place.line]
        custom = above[-1].metadata.get("custom") if above else None
        code = custom.get("code") if isinstance(custom, dict) else None
        return (above[-1].line if above else 0), code if isinstance(code, str) else self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestMutant(Mutant):
    """A changed effective manifest. `tool` is the tool of the changed entry; None if no entry changed."""

    manifest: EffectiveManifest
    tool: str | None

    def applied(self, suite: Suite) -> Suite:
        """Return the suite with the changed manifest."""
        return replace(suite, manifest=self.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMutant(Mutant):
    """The complete data of a suite (`directory` and `settings`) with one change."""

    data: dict[str, Any]

    def applied(self, suite: Suite) -> Suite:
        """Return the suite with the changed data."""
        return replace(suite, data=self.data)


class Fate(StrEnum):
    """The result of testing a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class ProposedScenario:
    """A scenario that kills a survivor, as a YAML list with one item, or a `note` that says why no scenario was found.

    `loosens` is True if the mutant admits more than the original in the call of the scenario.
    """

    scenario: str | None
    file: Path | None
    note: str | None = None
    loosens: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of testing a mutant. If a scenario to kill it was searched, `proposal` is the result of the search.

    `by` is the failing scenario (`FILE:LINE name`), the error of an invalid mutant, or why the mutant is equivalent.
    `unnoticed` counts the recorded requests that a survivor decides differently without making a scenario fail.
    """

    mutant: Mutant
    fate: Fate
    by: str | None = None
    unnoticed: int = 0
    proposal: ProposedScenario | None = None


class Identities:
    """Creates the ids of the mutants of one file. Equal changes of a rule, tool or data path get different numbers."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._seen: Counter[tuple[str, ...]] = Counter()

    def of(self, owner: str, kind: str, original: str, changed: str, *, about: str | None = None) -> dict[str, str]:
        """Return the id and other fields of a mutant. The id's hash covers `about`, or if None, the original text."""
        change = (owner, kind, " ".join((about or original).split()), " ".join(changed.split()))
        self._seen[change] += 1
        digest = hashlib.sha256("\0".join((*change, str(self._seen[change]))).encode()).hexdigest()
        identity = f"{self._file}:{owner}:{kind.replace(' ', '-')}:{digest[:_HASH]}"
        return {"id": identity, "kind": kind, "owner": owner, "original": original, "changed": changed}


def file_name(file: Path) -> str:
    """Return `FOLDER/FILE`, a name of a file that does not depend on the working directory."""
    return f"{file.resolve().parent.name}/{file.name}"


def difference(file: str, before: str, after: str) -> str:
    """Return the difference of two texts as a unified diff, without a final newline."""
    lines = unified_diff(before.splitlines(), after.splitlines(), file, f"{file} (mutant)", n=_CONTEXT, lineterm="")
    return "\n".join(lines)
