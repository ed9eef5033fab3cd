"""The scenario that would kill a survivor, ready to be pasted under `scenarios:`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from pdp.workbench.mutation.mutant import Mutant

_WIDTH: Final = 110


class _Plain(yaml.SafeDumper):
    """YAML without aliases, which would hide what stands where."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a search for a difference came to.

    Attributes:
        scenario: YAML, one scenario of a list; None when no request of the suite's own shows the difference.
        file: the scenario file that it belongs in.
        note: what else has to be known: what the difference needs, or what was searched in vain.
    """

    scenario: str | None
    file: Path | None
    note: str | None = None


def request_scenario(mutant: Mutant, request: Any, digest: str, version: str, expect: dict[str, Any]) -> str:
    """Write a scenario with a step `request`; the manifest's digest and version are left to the harness."""
    return _written(
        mutant, {"request": _named(request, {digest: "$manifest_digest", version: "$manifest_version"})}, expect
    )


def proposal_scenario(mutant: Mutant, proposal: Any, session: dict[str, Any], expect: dict[str, Any]) -> str:
    """Write a scenario with a step `propose`."""
    laid_over = {"session": session} if session else {}
    return _written(mutant, {**laid_over, "propose": proposal}, expect)


def _written(mutant: Mutant, step: dict[str, Any], expect: dict[str, Any]) -> str:
    scenario = {
        "name": f"kills {mutant.id}",
        "why": f"{mutant.kind} in {mutant.owner} ({mutant.place.file}:{mutant.place.line}) must be noticed",
        **step,
        "expect": expect,
    }
    text = yaml.dump(
        [scenario], Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return str(text).rstrip("\n")


def _named(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _named(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value
