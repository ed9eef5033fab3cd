"""A bundle diff never reports a back door as harmless, with or without a manifest in the bundle."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.opa.build import compile_bundle
from pdp.opa.modules import baseline_policies_path, write_texts
from pdp.workbench.diff.bundle_diff import bundle_diff
from tests.policies.hand_mutants.mutants import BACK_DOORS, HandMutant, hand_mutants, sample
from tests.support.payments import effective

pytestmark = [pytest.mark.opa, pytest.mark.process]

DOORS = sample(hand_mutants(*BACK_DOORS), 2)
"""A comparison takes seconds, so only two are compared, one of them with a manifest. `test_changed_rules` compares a
dozen changes in one bundle.
"""

CALLS = 200


def built(folder: Path, opa: Path, modules: dict[str, str]) -> Path:
    """Build a bundle of the baseline with the given modules replaced and without manifests."""
    policies = folder / "policies"
    shutil.copytree(baseline_policies_path(), policies, ignore=shutil.ignore_patterns("checks"))
    write_texts(policies, modules)
    file = folder / "bundle.tar.gz"
    file.write_bytes(compile_bundle(policies=[policies], release=1, opa=opa))
    return file


@cache
def unchanged(folder: Path, opa: Path) -> Path:
    return built(folder, opa, {})


def with_manifest(bundle: Path) -> Path:
    """Return a copy of the bundle that includes the manifest of the payments example."""
    read = read_bundle(bundle)
    data = {**read.data, "manifests": {effective().digest: effective().document}}
    file = bundle.with_name("with-manifest.tar.gz")
    file.write_bytes(pack_bundle(release=1, wasm=read.wasm, data=data, modules=read.modules))
    return file


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_bundle_diff_of_a_back_door_fails_the_gate(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, opa: Path, door: HandMutant
) -> None:
    base = tmp_path_factory.getbasetemp() / "unchanged"
    old, new = unchanged(base, opa), built(tmp_path, opa, door.modules)

    bundles = (old, new) if DOORS.index(door) % 2 else (with_manifest(old), with_manifest(new))
    diff = bundle_diff(*bundles, most=CALLS, solved=False)

    assert diff.fails("loosening")
    assert diff.loosenings() or diff.not_shown


def test_bundle_diff_without_calls_reports_changes_as_not_shown(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, opa: Path
) -> None:
    old = unchanged(tmp_path_factory.getbasetemp() / "unchanged", opa)

    diff = bundle_diff(old, built(tmp_path, opa, DOORS[0].modules), most=0)

    assert diff.not_shown
    assert diff.fails("loosening")
