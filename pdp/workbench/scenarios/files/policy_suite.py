"""Policies, data and a manifest without scenarios: what an engine for tests of one's own is opened with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.documents import read_document
from pdp.engine.data import read_data
from pdp.errors import UsageError
from pdp.json import digest
from pdp.manifest.load import load_effective
from pdp.workbench.scenarios.files.scenario import ScenarioFile
from pdp.workbench.scenarios.files.suite import Suite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def policy_suite(
    manifest: Path,
    *,
    governance: Path | None = None,
    policies: Sequence[Path] = (),
    data: Sequence[Path] = (),
    bundle: Path | None = None,
) -> Suite:
    """Return a suite that has no scenarios.

    Args:
        manifest: that proposals are held against.
        governance: the policy author's half of it.
        policies: folders with concerns of one's own.
        data: files with what they ask for.
        bundle: instead of policies.

    Raises:
        UsageError: a file cannot be read, or policies stand beside a bundle.
        FileFaultsError: a file is faulty; every fault of it.
    """
    if bundle is not None and policies:
        raise UsageError("a bundle stands beside policies", hint="a bundle holds its policies: leave one of them out")
    effective = load_effective(manifest, governance)
    return Suite(
        file=manifest,
        document=read_document(manifest),
        model=ScenarioFile(),
        manifest=effective,
        policies=tuple(policies),
        bundle=bundle,
        data=read_data(data),
        tools=None,
        scenarios=(),
        sessions=(),
        places=(),
        manifest_text=digest(manifest.read_bytes()),
    )
