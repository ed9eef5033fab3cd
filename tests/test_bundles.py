"""The released bundles: rebuilt from their sources to the same bytes, and loaded by a plain OPA."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.bundle.build import build_bundle, compile_bundle
from pdp.engine.bundle_file import baseline_bundle_path, read_bundle
from tests import payments

pytestmark = pytest.mark.opa

POLICIES = payments.ROOT / "policies"


def test_the_baseline_is_what_its_sources_give(opa: Path) -> None:
    released = read_bundle(baseline_bundle_path())

    rebuilt = compile_bundle(policies=[POLICIES], release=released.release, opa=opa)

    assert rebuilt == baseline_bundle_path().read_bytes(), "run: scripts/release-bundles"


def test_the_example_is_what_its_sources_give(opa: Path, tmp_path: Path) -> None:
    effective = payments.effective()
    released = read_bundle(payments.BUNDLE)

    build_bundle(
        policies=[POLICIES, payments.EXAMPLE / "policies"],
        manifests={effective.digest: effective.document},
        release=released.release,
        opa=opa,
        out=tmp_path / "payments.tar.gz",
    )

    assert (tmp_path / "payments.tar.gz").read_bytes() == payments.BUNDLE.read_bytes(), "run: scripts/release-bundles"


def test_the_baseline_requires_every_concern_that_it_has() -> None:
    bundle = read_bundle(baseline_bundle_path())
    folders = sorted(path.name for path in (POLICIES / "authz/concerns").iterdir())

    assert bundle.data["config"]["required_concerns"] == folders
    assert len(folders) == 12
