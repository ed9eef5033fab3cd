"""Some mutants of the baseline are marked equivalent, because they differ for no manifest that loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.data import read_data
from pdp.errors import FileFaultsError
from pdp.manifest.load import load_effective
from tests.support import ROOT

SCENARIOS = ROOT / "tests/scenarios"
TOOL: dict[str, Any] = {
    "name": "probe", "description": "What is tried", "schema": {"type": "object"}, "effect_class": "stage",
    "risk_tier": "low", "scopes": ["probe.use"],
}  # fmt: skip

AMOUNT = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}

REFUSED: dict[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
"""Manifest entries for each reason in the marks. Only a policy with a marked mutant would accept these entries."""

LOADED = "The build writes every effective manifest as an object, and pins as an object where there are any."
CONCERNS = "The build requires the concerns that a bundle has, so that the set of those missing is empty."
PINS = "Loading refuses a pin to another version than the tool's, so that both are equal wherever there is a pin."
DIRECTORY = "Loading and the build refuse a directory that is not a mapping."
SUBJECT = "Loading refuses `$subject` among the approvers of commit-high."
ASKED = "Loading gives every entry with a limit an approval."
WRITTEN = (
    "The build writes the list of required concerns into every bundle.",
    "The build writes the bundle's revision into every bundle.",
)


def loaded(folder: Path, changes: dict[str, Any], **document: Any) -> dict[str, Any]:
    """Load a manifest with changes to one entry, and return the effective manifest. The value None removes a field."""
    tool = {name: value for name, value in (TOOL | changes).items() if value is not None}
    file = folder / "manifest.json"
    file.write_text(json.dumps({"manifest_version": "1", "tools": [tool]} | document))
    return dict(load_effective(file).document)


def test_every_equivalence_mark_whose_reason_is_manifest_loading_has_a_test() -> None:
    marks = yaml.safe_load((SCENARIOS / "mutants.yaml").read_text())

    assert {mark["reason"] for mark in marks if mark.get("holds") == "loader"} == {
        *REFUSED, LOADED, CONCERNS, PINS, SUBJECT, ASKED, DIRECTORY, *WRITTEN,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=f"{reason[:40]}-{number}")
        for reason, attempts in REFUSED.items()
        for number, changes in enumerate(attempts)
    ],
)
def test_manifest_entry_that_an_equivalence_mark_calls_invalid_does_not_load(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert loaded(tmp_path, {})["tools"]["probe"]["scopes"] == ["probe.use"]
    with pytest.raises(FileFaultsError) as raised:
        loaded(tmp_path, changes)

    assert any(next(iter(changes)) in f"{fault.place} {fault.message} {fault.hint}" for fault in raised.value.faults), [
        str(fault) for fault in raised.value.faults
    ]


def test_loading_a_manifest_adds_fields_that_an_entry_lacks(tmp_path: Path) -> None:
    entry = loaded(tmp_path, {"risk_tier": None, "effect_class": "read-internal"})["tools"]["probe"]

    assert {name: entry.get(name) for name in ("risk_tier", "scopes", "limits", "idempotency", "provenance")} == {
        "risk_tier": "low", "scopes": ["probe.use"], "limits": [], "idempotency": {"required": False},
        "provenance": {"required": []},
    }  # fmt: skip


def test_data_file_whose_directory_is_not_a_mapping_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"directory": "a text"}')

    with pytest.raises(FileFaultsError, match="directory must be a mapping"):
        read_data([file])


def test_loading_adds_an_approval_to_an_entry_with_a_limit(tmp_path: Path) -> None:
    limited = {"limits": [{"limit": "probes", "argument": "amount"}], "schema": AMOUNT}

    assert loaded(tmp_path, limited)["tools"]["probe"]["approval"]["quorum"] == 1


@pytest.mark.parametrize("pinned", ["1.2.0-rc1", "11.2.0", "1.2", "1.2.00", " 1.2.0", "1.2.0-RC"])
def test_manifest_that_pins_another_tool_version_does_not_load(tmp_path: Path, pinned: str) -> None:
    with pytest.raises(FileFaultsError):
        loaded(tmp_path, {"version": "1.2.0"}, agents=[{"id": "agent:a", "tools": {"probe": pinned}}])


@pytest.mark.parametrize("agents", ["agent:a", 1, {"agent:a": 1}, ["agent:a"]])
def test_pinned_tool_versions_of_an_effective_manifest_are_objects(tmp_path: Path, agents: object) -> None:
    pins = loaded(tmp_path, {"version": "1.0.0"}, agents=[{"id": "agent:a", "tools": {"probe": "1.0.0"}}])["agents"]

    assert pins == {"agent:a": {"probe": "1.0.0"}}
    with pytest.raises(FileFaultsError):
        loaded(tmp_path, {}, agents=agents)


def test_built_bundle_contains_the_required_concerns_and_a_release_number() -> None:
    config = read_bundle(baseline_bundle_path()).data["config"]

    assert config["required_concerns"] == sorted(path.name for path in (ROOT / "policies/authz/concerns").iterdir())
    assert config["bundle"]["release"] > 1


def test_subject_cannot_approve_commit_high_calls(tmp_path: Path) -> None:
    with pytest.raises(FileFaultsError) as raised:
        loaded(tmp_path, {"approval": {"approvers": ["$subject"]}, "effect_class": "commit-high"})

    assert any("cannot approve commit-high" in fault.message for fault in raised.value.faults)
