"""Each check of the release gate passes for a complete project, and fails for a project with one fault."""

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import baseline_bundle_path, pack_bundle, read_bundle
from pdp.errors import FileFaultsError
from pdp.json import canonical, digest
from pdp.manifest.load import load_effective
from pdp.workbench.gate.gate import NAMES, read_explanations
from tests.support import payments
from tests.support.command_line import Done, pdp, written
from tests.support.scenario_files import BIG, MANIFEST, NOTE, READ, SESSION

PACK = "pack.tool.read_note"
TOOLS: dict[str, Any] = {
    "manifest_version": "7",
    "tools": [
        {**MANIFEST["tools"][0], "eval_pack": PACK},
        {**MANIFEST["tools"][1], "eval_pack": "pack.tool.send_wire"},
    ],
}
SMALL = {"tool": "send_wire", "arguments": {"amount": 50}}
FUNCTIONS = """
def tools(world=None):
    bank, notes = (world["bank"], world["notes"]) if world else ({}, {"n-1": True})

    def send_wire(amount):
        bank["wire"] = amount
        return {"sent": True}

    return {"read_note": lambda id: {"read": notes[id]}, "send_wire": send_wire}
"""
WORLD = {"bank": {"place": "external"}, "notes": {"place": "internal", "state": {"n-1": True}}}
READING: list[Any] = [
    {
        "name": "a note is read", "golden": True, "propose": READ,
        "expect": {"verdict": "ALLOW", "executed": True, "result": {"read": True}},
    },
    {
        "name": "a note is read and nothing else is touched", "propose": READ, "world": WORLD,
        "expect": {"executed": True, "touched": ["read internal notes/n-1"]},
    },
    {
        "name": "a note takes its scope", "session": {"claims": {"emts": {"notes.read": None}}}, "propose": READ,
        "expect": {"verdict": "DENY", "executed": False},
    },
]  # fmt: skip
WIRING: list[Any] = [
    {
        "name": "a wire is sent",
        "golden": True,
        "propose": SMALL,
        "expect": {"verdict": "ALLOW", "executed": True, "result": {"sent": True}},
    },
    {
        "name": "a wire is written, and nothing else is touched", "propose": SMALL, "world": WORLD,
        "expect": {"executed": True, "touched": ["write external bank/wire"]},
    },
    {"name": "a large one waits", "propose": BIG, "expect": {"verdict": "STEP_UP", "executed": False}},
    {
        "name": "it is sent once",
        "steps": [
            {"propose": SMALL, "expect": {"executed": True}},
            {"propose": SMALL, "expect": {"executed": False, "status": "accepted", "result": {"sent": True}}},
        ],
    },
]  # fmt: skip
PROBE = "side-effect probe (a call in a `world`, with `executed: true` and what it `touched`, such as its writes)"
DENIED = [
    {"propose": SMALL, "expect": {"executed": True}},
    {"propose": SMALL, "session": {"claims": {"emts": {}}}, "expect": {"executed": False, "verdict": "DENY"}},
]
IDEMPOTENCY = "idempotency probe (one call twice, the second with `executed: false` and the `result` of the first)"
GOLDEN = "golden input (a golden call with `executed: true` and its `result`, and without `returns`)"
SKIPPED = ("loosening",)


def scenario_file(file: Path, scenarios: Any, manifest: str = "manifest.json") -> Path:
    tools = written(file.parent / "tools.py", FUNCTIONS).name
    return written(file, {"manifest": manifest, "session": SESSION, "tools": tools, "scenarios": scenarios})


def released(folder: Path, *manifests: Any, name: str = "bundle.tar.gz", release: int = 2) -> Path:
    """Write a bundle of the baseline policies with these manifests, by default with the project's manifest."""
    folder.mkdir(exist_ok=True)
    held = [load_effective(written(folder / f"{name}.json", manifest)) for manifest in manifests or (TOOLS,)]
    bundle = read_bundle(baseline_bundle_path())
    data = {**bundle.data, "manifests": {each.digest: each.document for each in held}}
    packed = pack_bundle(release=release, wasm=bundle.wasm, data=data, modules=bundle.modules)
    return written(folder / name, packed)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project that passes the gate, with manifest, scenarios, packs and bundle."""
    (tmp_path / "packs").mkdir()
    written(tmp_path / "manifest.json", TOOLS)
    scenario_file(tmp_path / "scenarios.json", READING + WIRING)
    scenario_file(tmp_path / "packs" / f"{PACK}.json", READING, "../manifest.json")
    scenario_file(tmp_path / "packs/pack.tool.send_wire.json", WIRING, "../manifest.json")
    released(tmp_path)
    return tmp_path


def checked(project: Path, *options: object) -> Done:
    return pdp(
        "release", "check", project / "scenarios.json", "--bundle", project / "bundle.tar.gz", "--json",
        "--generate", 300, *(() if "--last" in options else ("--skip", "loosening")), *options,
    )  # fmt: skip


def failed(done: Done) -> dict[str, list[str]]:
    """Return the reasons of each failed check, by check name."""
    assert done.code == (0 if done.json["passed"] else 1)
    return {item["name"]: item["reasons"] for item in done.json["checks"] if item["status"] == "fail"}


def test_release_gate_passes_a_project_that_meets_every_check(project: Path) -> None:
    done = checked(project)

    assert failed(done) == {}
    assert [item["name"] for item in done.json["checks"]] == list(NAMES)
    assert tuple(item["name"] for item in done.json["checks"] if item["status"] == "skip") == SKIPPED
    assert done.json["revision"] == read_bundle(project / "bundle.tar.gz").revision


def test_gate_fails_if_scenarios_are_skipped(project: Path) -> None:
    done = checked(project, "--skip", "scenarios")

    assert (done.code, done.json["passed"], failed(done)) == (1, False, {})


def test_release_gate_prints_its_checks_and_their_reasons_as_text(project: Path) -> None:
    (project / "packs" / f"{PACK}.json").unlink()

    done = pdp(
        "release", "check", project / "scenarios.json", "--bundle", project / "bundle.tar.gz", "--skip", "audit-pinned"
    )

    reason = f"read_note 1.0.0: no pack {PACK} in {project / 'packs'}"
    assert done.code == 1
    assert done.out.splitlines()[1:] == [
        "pass  scenarios             7 scenarios",
        "pass  golden-schemas        2 of 2 golden scenarios are valid",
        "pass  manifest-violations   0 violations in 2 golden scenarios",
        "pass  tools-proven          2 tools that are new or changed",
        "pass  actions-known         2 tools",
        "pass  unit-coverage         0 modules of Rego new or changed",
        "pass  mutation              0 modules of Rego new or changed",
        "fail  packs                 2 tools that are new or changed",
        f"      {reason}",
        "fail  loosening             release 2 is not the first, and --last is missing",
        "      pass the last release with --last FILE, or skip the check with --skip loosening",
        "pass  manifest-version      1 manifest",
        "skip  audit-pinned          skipped by --skip",
        "release 2 must not be released: 9 passed, 2 failed, 1 skipped: audit-pinned",
    ]


def test_release_gate_compares_a_first_release_with_no_earlier_release(project: Path) -> None:
    released(project, release=1)

    done = pdp("release", "check", project / "scenarios.json", "--bundle", project / "bundle.tar.gz")

    assert (done.code, done.out.splitlines()[-1]) == (
        0, "release 1 may be released: 11 passed, 0 failed, 1 skipped: loosening",
    )  # fmt: skip


def test_gate_reports_failing_scenarios_and_invalid_golden_calls(project: Path) -> None:
    wrong = [
        {"name": "denied", "propose": READ, "expect": {"verdict": "DENY"}},
        {
            "name": "misspelt", "golden": True, "propose": {"tool": "red_note", "arguments": {}},
            "expect": {"rejection": "INVALID_TOOL_NAME"},
        },
        {
            "name": "empty", "golden": True, "propose": {"tool": "read_note", "arguments": {}},
            "expect": {"rejection": "INVALID_PAYLOAD"},
        },
    ]  # fmt: skip
    file = scenario_file(project / "scenarios.json", READING + WIRING + wrong)
    at = f"{file}:1: "

    assert failed(checked(project)) == {
        "scenarios": [f"{at}denied", f"{at}misspelt", f"{at}empty"],
        "golden-schemas": [
            f"{at}misspelt: its arguments are not valid against the tool's schema",
            f"{at}empty: its arguments are not valid against the tool's schema",
        ],
        "manifest-violations": [f"{at}misspelt: proposes a tool that the manifest does not have"],
    }


def test_gate_fails_for_a_golden_call_without_a_required_idempotency_key(project: Path) -> None:
    wire = {**TOOLS["tools"][1], "idempotency": {"required": True}}
    manifest = {**TOOLS, "tools": [TOOLS["tools"][0], wire]}
    written(project / "manifest.json", manifest)
    keyless = {"name": "keyless", "golden": True, "propose": SMALL, "expect": {"rejection": "INVALID_PAYLOAD"}}
    file = scenario_file(project / "scenarios.json", [*READING, keyless])
    released(project, manifest)

    violations = failed(checked(project))["manifest-violations"]
    assert violations == [f"{file}:1: keyless: lacks the required idempotency key"]


def test_mutation_check_of_the_gate_names_failing_scenarios(project: Path) -> None:
    bundle = read_bundle(project / "bundle.tar.gz")
    path = "authz/concerns/manifest/manifest.rego"
    modules = {**bundle.modules, path: f"{bundle.modules[path]}\n# changed\n"}
    written(
        project / "bundle.tar.gz", pack_bundle(release=2, wasm=bundle.wasm, data=dict(bundle.data), modules=modules)
    )
    wrong = {"name": "denied", "propose": READ, "expect": {"verdict": "DENY"}}
    file = scenario_file(project / "scenarios.json", [*READING, *WIRING, wrong])

    done = checked(project)

    assert failed(done)["mutation"] == failed(done)["scenarios"] == [f"{file}:1: denied"]
    (summary,) = (check["summary"] for check in done.json["checks"] if check["name"] == "mutation")
    assert summary == "no mutant was tested: fix the failing scenarios first"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"effect_class": "teleport"}, "read_note gives effects.unknown", id="effect class"),
        pytest.param({"pdp_action": 7}, "7 gives manifest.unknown_action", id="action"),
    ],
)
def test_gate_fails_for_an_unknown_action_or_effect_class(project: Path, changed: dict[str, Any], reason: str) -> None:
    bundle = read_bundle(project / "bundle.tar.gz")
    (manifest,) = deepcopy(bundle.data["manifests"]).values()
    manifest["tools"]["read_note"] |= changed
    data = {**bundle.data, "manifests": {digest(canonical(manifest)): manifest}}
    written(project / "bundle.tar.gz", pack_bundle(release=2, wasm=bundle.wasm, data=data, modules=bundle.modules))

    assert failed(checked(project))["actions-known"] == [f"read_note of manifest 7: {reason}"]


def test_gate_ignores_scenarios_of_another_manifest(project: Path) -> None:
    other = deepcopy(TOOLS)
    other["tools"][0]["scopes"] = ["notes.read", "notes.more"]
    digest = load_effective(written(project / "manifest.json", other)).digest
    file = project / "scenarios.json"

    found = failed(checked(project))

    (held,) = read_bundle(project / "bundle.tar.gz").data["manifests"]
    assert found["manifest-digest"] == [
        f"{file}: the bundle does not hold its manifest 7, {digest}",
        f"manifest 7, {held}: new in this release, and no scenario file uses it",
    ]
    assert found["scenarios"] == ["no scenario was run"]
    unproven = [f"{tool} of manifest 7: no scenario file uses that manifest" for tool in ("read_note", "send_wire")]
    assert found["tools-proven"] == unproven
    assert found["packs"] == unproven
    assert found["audit-pinned"] == ["there is no event: add golden scenarios"]


def test_gate_fails_for_a_new_tool_without_scenarios(project: Path) -> None:
    scenario_file(project / "scenarios.json", READING)
    last = released(project / "last", {**TOOLS, "manifest_version": "6", "tools": TOOLS["tools"][:1]}, release=1)

    found = failed(checked(project, "--last", last, "--skip", "loosening"))

    file = project / "scenarios.json"
    assert found == {
        "tools-proven": [
            f"{file}: no scenario in which send_wire of manifest 7 is ALLOW",
            f"{file}: no scenario in which send_wire of manifest 7 is not ALLOW",
        ]
    }


@pytest.mark.parametrize(
    ("pack", "missing"),
    [
        pytest.param(WIRING[1:], GOLDEN, id="no golden input"),
        pytest.param(
            [{**WIRING[0], "expect": {"verdict": "ALLOW"}}, *WIRING[1:]], GOLDEN, id="golden call without executed"
        ),
        pytest.param(
            [{**WIRING[0], "expect": {"executed": True}}, *WIRING[1:]], GOLDEN, id="golden call without a result"
        ),
        pytest.param([{**WIRING[0], "returns": {"sent": True}}, *WIRING[1:]], GOLDEN, id="golden call with returns"),
        pytest.param([WIRING[0], *WIRING[2:]], PROBE, id="no side-effect probe"),
        pytest.param([{**WIRING[0], "world": WORLD}, *WIRING[2:]], PROBE, id="probe without touched"),
        pytest.param(WIRING[:3], IDEMPOTENCY, id="no key"),
        pytest.param([*WIRING[:3], {"name": "the second is denied", "steps": DENIED}], IDEMPOTENCY, id="no replay"),
    ],
)
def test_gate_requires_golden_inputs_and_both_probes_in_a_test_pack(project: Path, pack: Any, missing: str) -> None:
    file = scenario_file(project / "packs/pack.tool.send_wire.json", pack, "../manifest.json")

    assert f"{file}: no {missing} of send_wire 1.0.0" in failed(checked(project))["packs"]


def test_gate_fails_for_a_failing_or_unrelated_test_pack(project: Path) -> None:
    wrong = [*READING, {"name": "denied", "propose": READ, "expect": {"verdict": "DENY"}}]
    file = scenario_file(project / "packs" / f"{PACK}.json", wrong, "../manifest.json")
    assert failed(checked(project)) == {"packs": [f"{file}:1: denied: fails: verdict: ALLOW, expected: DENY"]}

    digest = load_effective(written(project / "other.json", {**TOOLS, "manifest_version": "8"})).digest
    scenario_file(file, READING, "../other.json")
    assert failed(checked(project)) == {"packs": [f"{file}: uses another manifest (8, {digest})"]}


def test_tool_that_exceeds_its_effect_class_fails_the_probe_of_its_test_pack(project: Path) -> None:
    """The entry declares the tool as read-internal, but the function writes to the bank."""
    lies = FUNCTIONS.replace("lambda id: {", "lambda id: bank.update(readers=1) or {")
    written(project / "packs/tools.py", lies)

    assert failed(checked(project, "--skip", "audit-pinned")) == {
        "packs": [
            (
                f"{project / 'packs' / PACK}.json:1: a note is read and nothing else is touched: fails: "
                "effect class: read_note: write external bank/readers, expected: read-internal may read internal"
            )
        ]
    }


def test_gate_requires_test_packs_only_for_changed_tools(project: Path) -> None:
    (project / "packs" / f"{PACK}.json").unlink()
    before = deepcopy(TOOLS)
    before["manifest_version"] = "6"
    before["tools"][1]["scopes"] = []

    assert (
        failed(checked(project, "--last", released(project / "last", before, release=1), "--skip", "loosening")) == {}
    )


NEWER: dict[str, Any] = {
    "manifest_version": "8",
    "tools": [
        {**TOOLS["tools"][0], "version": "1.1.0", "description": "Read one note", "eval_pack": "pack.new"},
        TOOLS["tools"][1],
    ],
}


def test_release_gate_checks_a_manifest_that_is_added_to_an_existing_manifest(project: Path) -> None:
    """During a roll-out, the bundle contains both manifests. Old scenarios do not test the new manifest."""
    last = released(project / "last", release=1)
    released(project, TOOLS, NEWER)
    digest = load_effective(written(project / "newer.json", NEWER)).digest
    old = load_effective(project / "manifest.json").digest
    options = ("--last", last, "--skip", "loosening")

    unproven = "read_note of manifest 8: no scenario file uses that manifest"
    assert failed(checked(project, *options)) == {
        "manifest-digest": [f"manifest 8, {digest}: new in this release, and no scenario file uses it"],
        "tools-proven": [unproven],
        "packs": [unproven],
    }

    newer = scenario_file(project / "newer-scenarios.json", READING[:1], "newer.json")
    assert failed(checked(project, newer, *options)) == {
        "tools-proven": [f"{newer}: no scenario in which read_note of manifest 8 is not ALLOW"],
        "packs": [f"read_note 1.1.0: no pack pack.new in {project / 'packs'}"],
    }

    scenario_file(newer, READING, "newer.json")
    pack = scenario_file(project / "packs/pack.new.json", READING, "../manifest.json")
    assert failed(checked(project, newer, *options)) == {
        "packs": [f"{pack}: uses another manifest (7, {old})"],
    }

    scenario_file(pack, READING, "../newer.json")
    assert failed(checked(project, newer, *options)) == {}


def test_gate_requires_scenarios_for_a_new_manifest_without_new_tools(project: Path) -> None:
    last = released(project / "last", release=1)
    newer = {**TOOLS, "manifest_version": "8"}
    digest = load_effective(written(project / "newer.json", newer)).digest
    released(project, TOOLS, newer)

    assert failed(checked(project, "--last", last, "--skip", "loosening")) == {
        "manifest-digest": [f"manifest 8, {digest}: new in this release, and no scenario file uses it"]
    }


def test_one_test_pack_covers_a_tool_with_the_same_entry_in_two_manifests(project: Path) -> None:
    newer = {**TOOLS, "manifest_version": "8"}
    written(project / "newer.json", newer)
    other = scenario_file(project / "newer-scenarios.json", READING + WIRING, "newer.json")
    released(project, TOOLS, newer)

    assert failed(checked(project, other)) == {}


def test_gate_fails_for_a_changed_manifest_with_an_old_version(project: Path) -> None:
    before = deepcopy(TOOLS)
    before["tools"][0]["schema"] = {**NOTE, "maxProperties": 3}
    last = released(project / "last", before, release=1)
    digests = [next(iter(read_bundle(file).data["manifests"])) for file in (project / "bundle.tar.gz", last)]

    assert failed(checked(project, "--last", last, "--skip", "loosening")) == {
        "manifest-version": [f"manifest 7: {digests[0]} and {digests[1]} have this version: change `manifest_version`"]
    }


@pytest.mark.opa
def test_release_gate_requires_exactly_one_explanation_for_each_loosened_decision(project: Path) -> None:
    before = deepcopy(TOOLS)
    before["manifest_version"] = "6"
    before["tools"][0]["scopes"] = ["notes.read", "notes.more"]
    last = released(project / "last", before, release=1)

    (reasons,) = failed(checked(project, "--last", last)).values()
    ids = [reason.split()[0] for reason in reasons]
    assert "read_note: scopes: removed notes.more" in {reason.split(": ", 1)[1] for reason in reasons}

    entries = [{"difference": each, "reason": "notes are open now"} for each in ids]
    file = written(project / "explained.json", {"explained": entries})
    assert failed(checked(project, "--last", last, "--explanations", file)) == {}

    written(file, {"explained": [*entries, {"difference": "stale", "reason": "once"}]})
    (stale,) = failed(checked(project, "--last", last, "--explanations", file))["loosening"]
    assert stale.endswith(": explains stale, which is not a loosening of this release: remove it")
    assert stale.startswith(f"{file}:1:")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param([], "1:1: the file must be a mapping, not a list", id="no mapping"),
        pytest.param({"explained": [], "more": 1}, "1:19: unknown key `more`", id="more"),
        pytest.param({"explained": [{"difference": "a"}]}, "1:16: `explained[0].reason` is missing", id="no reason"),
        pytest.param(
            {"explained": [{"difference": "a", "reason": " "}]},
            "1:46: `explained[0].reason` must not be empty", id="an empty reason",
        ),
    ],
)  # fmt: skip
def test_release_gate_reports_a_faulty_loosening_explanation_with_its_location(
    tmp_path: Path, content: Any, complaint: str
) -> None:
    file = written(tmp_path / "explained.json", content)

    with pytest.raises(FileFaultsError) as caught:
        read_explanations(file)

    assert [str(fault).splitlines()[0] for fault in caught.value.faults] == [f"{file}:{complaint}"]


def test_gate_rejects_a_bundle_as_its_own_last_release(project: Path) -> None:
    bundle = project / "bundle.tar.gz"

    assert checked(project, "--last", bundle)[::2] == (
        2,
        (
            f"error: {bundle}: release 2 must be lower than release 2 of the new bundle\n"
            "    hint: pass the bundle that engines use now, and build the new one with a higher --release\n"
        ),
    )


@pytest.mark.opa
@pytest.mark.process
@pytest.mark.parametrize(
    ("door", "skipped"),
    [
        ('input.subject.id == "clerk"; input.context.purpose == "end"; input.context.arguments.amount == 17.5', ()),
        # No generated call shows this door. The mutation check does not depend on generated calls.
        ('is_string(input.subject.id); indexof(input.subject.id, "llam") == 2', ("mutation",)),
    ],
)
def test_back_door_in_changed_rego_fails_the_coverage_mutation_and_loosening_checks(
    tmp_path: Path, door: str, skipped: tuple[str, ...]
) -> None:
    example = tmp_path / "payments"
    shutil.copytree(payments.EXAMPLE, example)
    rego = example / "policies/custom/concerns/sanctions/sanctions.rego"
    rego.write_text(f"{rego.read_text()}\n_clear if {{ {door} }}\n")
    manifest = ("-m", example / "manifest.json", "-g", example / "governance.yaml")
    bundle = tmp_path / "new.tar.gz"
    built = pdp("bundle", "build", "-o", bundle, "--release", 99, "--policies", example / "policies", *manifest)
    assert built.code == 0, built.err

    options = [word for name in skipped for word in ("--skip", name)]
    done = pdp(
        "release", "check", example, "--bundle", bundle, "--last", payments.BUNDLE, "--json", "--generate", 300,
        *options,
    )  # fmt: skip

    assert failed(done).keys() == {"unit-coverage", "mutation", "loosening"} - {*skipped}


def test_gate_with_wrong_options_exits_with_2(project: Path) -> None:
    explained = written(project / "explained.json", json.dumps({"explained": []}))

    assert checked(project, "--skip", "pack")[::2] == (
        2, "error: --skip pack: unknown check\n    hint: did you mean `packs`?\n",
    )  # fmt: skip
    assert checked(project, "--explanations", explained)[::2] == (
        2,
        ("error: --explanations has no effect without --last\n    hint: add --last BUNDLE\n"),
    )
