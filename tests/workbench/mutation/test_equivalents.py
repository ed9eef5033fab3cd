"""What the marks of the baseline rest on: what a mark says cannot be loaded or built, is tried here."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import FileFaultsError, UsageError
from pdp.manifest.load import load_effective
from pdp.workbench.bundles.build import compile_bundle
from tests.support import ROOT

SCENARIOS = ROOT / "tests/scenarios"
TOOL: dict[str, Any] = {
    "name": "probe", "description": "What is tried", "schema": {"type": "object"}, "effect_class": "stage",
    "risk_tier": "low", "scopes": ["probe.use"],
}  # fmt: skip

AMOUNT = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}

REFUSED: dict[str, list[dict[str, Any]]] = {
    "An entry's effect class is one of the six or absent, each with a gate; loading refuses any other.": [
        {"effect_class": "commit"}, {"effect_class": "Stage"}, {"effect_class": ""}, {"effect_class": ["stage"]},
    ],
    "Loading refuses an entry whose `release` is not passed and ok, so that no entry meets this rule.": [
        {"release": {"gate": "failed", "drift": "ok"}}, {"release": {"gate": "passed", "drift": "drifted"}},
        {"release": {"gate": "passed"}}, {"release": {}},
    ],
    "Loading refuses a `release` that is not passed and ok: both conditions hold wherever there is one.": [
        {"release": {"gate": "passed ", "drift": "ok"}}, {"release": {"gate": "passed", "drift": "OK"}},
    ],
    "An entry's tier is low, medium or high; one that is absent is that of the effect class, or high.": [
        {"risk_tier": "none"}, {"risk_tier": "Low"}, {"risk_tier": "lowest"}, {"risk_tier": ""}, {"risk_tier": 1},
    ],
    "Loading refuses a quorum that is not a whole number of at least 1.": [
        {"approval": {"approvers": ["probe.approver"], "quorum": quorum}} for quorum in (0, -1, 1.001, "1", True, None)
    ],
    "An entry's approvers are a list or absent, and in what is absent there is no role.": [
        {"approval": {"approvers": approvers}} for approvers in ("probe.approver", {"probe.approver": True}, 1)
    ],
    "Loading gives every entry lists of scopes and of limits with two names each, whatever is stated.": [
        {"scopes": "probe.use"}, {"scopes": {"probe.use": True}}, {"limits": {"limit": "l", "argument": "amount"}},
        {"limits": [{"limit": "l"}]}, {"limits": [{"limit": 1, "argument": "amount"}]}, {"limits": [["l", "amount"]]},
    ],
    "Loading gives an entry lists of admitted markings, and rules about runs of a known profile, or none.": [
        {"admits": "account"}, {"admits": {"account": True}}, {"flow": "strict"}, {"flow": {"profile": "Strict"}},
        {"flow": {"profile": "none"}}, {"flow": {"profile": "strict", "rules": "egress"}},
        {"flow": {"profile": "strict", "otherwise": "allow"}},
    ],
    "Loading gives every entry `idempotency.required` as a boolean and `provenance.required` as a list.": [
        {"idempotency": {"required": "yes"}}, {"idempotency": True}, {"provenance": {"required": "source_ids"}},
        {"provenance": ["source_ids"]},
    ],
    "Loading refuses markings and purposes that are not lists: after it they are lists or absent.": [
        {name: value} for name in ("markings", "purposes") for value in ("pii", {"pii": True}, False)
    ],
    "Loading refuses a release or an approval that is not a mapping: after it they are objects or absent.": [
        {name: value} for name in ("release", "approval") for value in ("passed", ["probe.approver"], True)
    ],
    "An entry's pattern is one of ten names or absent, and loading refuses what is nearly one of them.": [
        {"pattern": pattern} for pattern in ("search2", "searc", "xsearch", "earch", "SEARCH", " search")
    ],
    "An entry's effect class is one of six names or absent, and loading refuses what is nearly one of them.": [
        {"effect_class": name} for name in ("commit-high2", "commit-hig", "xpure", "ure", "PURE", " pure")
    ],
    "An entry's tier is one of three names, and loading refuses what is nearly one of them.": [
        {"risk_tier": tier} for tier in ("high2", "hig", "xhigh", "igh", "HIGH", " high")
    ],
    "Loading refuses approvers with blanks.": [
        {"approval": {"approvers": approvers}} for approvers in ([" $subject"], ["$subject "], [" probe.approver"])
    ],
    "Loading refuses a quorum above 100.": [{"approval": {"approvers": ["probe.approver"], "quorum": 101}}],
    "Loading refuses an empty purpose in an entry's list, and in a list of texts stands nothing but a stated one.": [
        {"purposes": [""]}, {"purposes": ["probing", 1]}, {"purposes": [None]},
    ],
    "Loading refuses a pattern that is unknown or of another effect class, so that no entry meets this rule.": [
        {"pattern": "guess"}, {"pattern": "Search"}, {"pattern": "lookup"}, {"pattern": ["lookup"]},
    ],
    "`risk.acceptable` allows each tier that loading admits: the clause `policy` holds for every entry.": [
        {"risk_tier": "severe"},
    ],
    "`risk.acceptable` is given wherever the effects grant is, so that each of the two stands in for the other.": [
        {"risk_tier": "severe"},
    ],
}  # fmt: skip
"""By the reason of the marks: an entry that only a policy without the marked mutants' conditions would take."""

LOADED = "The build writes every effective manifest as an object, and pins as an object where there are any."
CONCERNS = "The build refuses a bundle without a concern that it requires, so that the set of those missing is empty."
PINS = "Loading refuses a pin to another version than the tool's, so that both are equal wherever there is a pin."
DIRECTORY = "Loading and the build refuse a directory that is not a mapping."
SUBJECT = "Loading refuses `$subject` among the approvers of commit-high."
ASKED = "Loading gives every entry with a limit an approval."
WRITTEN = (
    "The build writes the list of required concerns into every bundle.",
    "The build writes the bundle's revision into every bundle.",
)


def loaded(folder: Path, changes: dict[str, Any], **document: Any) -> dict[str, Any]:
    """The effective manifest, as the build takes it, of one entry with these changes; None takes a field away."""
    tool = {name: value for name, value in (TOOL | changes).items() if value is not None}
    file = folder / "manifest.json"
    file.write_text(json.dumps({"manifest_version": "1", "tools": [tool]} | document))
    return dict(load_effective(file).document)


def test_each_mark_that_rests_on_loading_or_the_build_is_tried_here() -> None:
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
def test_an_entry_that_a_mark_rules_out_does_not_load(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert loaded(tmp_path, {})["tools"]["probe"]["scopes"] == ["probe.use"]
    with pytest.raises(FileFaultsError) as raised:
        loaded(tmp_path, changes)

    assert any(next(iter(changes)) in f"{fault.place} {fault.message} {fault.hint}" for fault in raised.value.faults), [
        str(fault) for fault in raised.value.faults
    ]


def test_what_an_entry_leaves_out_loading_states_in_the_form_that_the_policy_demands(tmp_path: Path) -> None:
    entry = loaded(tmp_path, {"risk_tier": None, "effect_class": "read-internal"})["tools"]["probe"]

    assert {name: entry.get(name) for name in ("risk_tier", "scopes", "limits", "idempotency", "provenance")} == {
        "risk_tier": "low", "scopes": ["probe.use"], "limits": [], "idempotency": {"required": False},
        "provenance": {"required": []},
    }  # fmt: skip


def test_a_directory_that_is_not_a_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"directory": "a text"}')

    with pytest.raises(FileFaultsError, match="directory must be a mapping"):
        read_data([file])


def test_an_entry_with_a_limit_has_an_approval(tmp_path: Path) -> None:
    limited = {"limits": [{"limit": "probes", "argument": "amount"}], "schema": AMOUNT}

    assert loaded(tmp_path, limited)["tools"]["probe"]["approval"]["quorum"] == 1


@pytest.mark.parametrize("pinned", ["1.2.0-rc1", "11.2.0", "1.2", "1.2.00", " 1.2.0", "1.2.0-RC"])
def test_a_pin_to_another_version_than_the_tools_does_not_load(tmp_path: Path, pinned: str) -> None:
    with pytest.raises(FileFaultsError):
        loaded(tmp_path, {"version": "1.2.0"}, agents=[{"id": "agent:a", "tools": {"probe": pinned}}])


@pytest.mark.parametrize("agents", ["agent:a", 1, {"agent:a": 1}, ["agent:a"]])
def test_an_effective_manifest_and_its_pins_are_objects(tmp_path: Path, agents: object) -> None:
    pins = loaded(tmp_path, {"version": "1.0.0"}, agents=[{"id": "agent:a", "tools": {"probe": "1.0.0"}}])["agents"]

    assert pins == {"agent:a": {"probe": "1.0.0"}}
    with pytest.raises(FileFaultsError):
        loaded(tmp_path, {}, agents=agents)


@pytest.mark.opa
@pytest.mark.process
def test_the_build_states_the_concerns_that_are_required_and_the_revision(opa: Path, tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    shutil.copytree(ROOT / "policies", policies)
    config = policies / "config/data.json"
    required = json.loads(config.read_text())["required_concerns"]
    config.write_text("{}")
    built = read_bundle(compile_bundle(policies=[policies], release=1, opa=opa)).data["config"]

    assert built["required_concerns"] == required
    assert built["bundle"]["release"] == 1
    config.write_text(json.dumps({"required_concerns": [*required, "absent"]}))
    with pytest.raises(UsageError, match="requires concerns that the baseline does not have: absent"):
        compile_bundle(policies=[policies], release=1, opa=opa)


def test_nobody_approves_a_commit_high_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(FileFaultsError) as raised:
        loaded(tmp_path, {"approval": {"approvers": ["$subject"]}, "effect_class": "commit-high"})

    assert any("approves no commit-high" in fault.message for fault in raised.value.faults)
