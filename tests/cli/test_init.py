"""`pdp init` creates a project that passes its own tests, and never overwrites a file."""

import json
import re
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from pdp import __version__
from tests.support import ROOT
from tests.support.command_line import pdp

FILES = [
    ".github/workflows/policy.yml",
    ".schemas/governance.json",
    ".schemas/manifest.json",
    ".schemas/project.json",
    ".schemas/scenarios.json",
    ".schemas/session.json",
    "README.md",
    "data.yaml",
    "edges.scenarios.yaml",
    "governance.yaml",
    "manifest.yaml",
    "mutants.yaml",
    "pdp.yaml",
    "policies/custom/concerns/replies/replies.rego",
    "policies/custom/concerns/replies/replies_test.rego",
    "properties.yaml",
    "proposal.json",
    "pytest.ini",
    "scenarios.yaml",
    "session.yaml",
    "tools.py",
]


def files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert pdp("init", tmp_path / "desk").code == 0
    return tmp_path / "desk"


def test_init_prints_created_files_and_next_steps(tmp_path: Path) -> None:
    folder = tmp_path / "a desk"

    done = pdp("init", folder)

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"{folder}: a new project, 21 files",
        *(f"  {name}" for name in FILES),
        "Next:",
        f"  cd '{folder}'",
        "  pdp opa install",
        "  pdp test",
        "  pdp decide proposal.json",
    ]
    assert files(folder) == FILES


def test_init_uses_the_current_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LICENSE").write_text("ours")

    done = pdp("init", ".")

    assert "  cd" not in done.out
    assert files(tmp_path) == sorted([*FILES, "LICENSE"])


def test_init_does_not_overwrite_files(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text("mine")
    (tmp_path / "tools.py").symlink_to("gone")

    done = pdp("init", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: {tmp_path}: already has manifest.yaml, tools.py, and files are not overwritten\n"
        "    hint: give a new folder, or move these files away\n"
    )
    assert (tmp_path / "manifest.yaml").read_text() == "mine"
    assert files(tmp_path) == ["manifest.yaml"]


def test_init_reports_an_unwritable_file(tmp_path: Path) -> None:
    (tmp_path / "policies").write_text("a file where a folder has to be")

    done = pdp("init", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: {tmp_path}/policies/custom/concerns/replies/replies.rego: cannot be written: Not a directory\n"
        "    hint: choose a folder you can write to\n"
    )


def test_new_project_requires_this_version_of_the_package(project: Path) -> None:
    requirement = f"'tool-pdp[proof]=={__version__}'"

    assert f"pip install {requirement} pytest" in (project / "README.md").read_text()
    assert f"REQUIREMENT: {requirement}\n" in (project / ".github/workflows/policy.yml").read_text()
    assert not any("@REQUIREMENT@" in (project / name).read_text() for name in FILES)


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_scenarios_of_new_project_kill_every_mutant(project: Path) -> None:
    done = pdp("mutate", project, "--json")

    counts = json.loads(done.out)
    assert (counts["score"], counts["equivalent"], counts["survivors"]) == (100, 1, [])


@pytest.mark.opa
def test_unit_tests_of_new_project_cover_its_custom_concern(project: Path, opa: Path) -> None:
    done = subprocess.run(
        [opa, "test", ROOT / "policies/authz", project / "policies", "--run", "custom.concerns", "--coverage"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    covered = yaml.safe_load(done.stdout)["files"]

    [rule] = [found for name, found in covered.items() if name.endswith("/replies.rego")]
    assert rule["coverage"] == 100


@pytest.mark.opa
def test_new_project_is_formatted_and_has_no_faults(project: Path, opa: Path) -> None:
    subprocess.run([opa, "fmt", "--fail", "--list", project / "policies"], check=True)
    subprocess.run([opa, "check", "--strict", ROOT / "policies/authz", project / "policies"], check=True)


def test_opa_policies_prints_the_policies_folder() -> None:
    done = pdp("opa", "policies")

    assert (done.code, done.out, done.err) == (0, f"{ROOT / 'policies'}\n", "")


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_commands_in_readme_of_new_project_need_no_options(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    lines = re.findall("^    pdp (.*)$", (project / "README.md").read_text(), re.MULTILINE)
    commands = [line.partition("#")[0].split() for line in lines]
    commands.remove(["opa", "install"])

    done = {" ".join(command): pdp(*command).code for command in commands}

    assert done == {
        "decide proposal.json": 3, "explain proposal.json": 3, "test": 0, "test --coverage": 0, "mutate": 0,
        "prove": 0, "manifest lint --strict": 0, "check": 0,
    }  # fmt: skip


# Draft projects, which `pdp init --from` writes for an existing manifest

DRAFTED = [
    *(f".schemas/{kind}.json" for kind in ("governance", "project", "scenarios", "session")),
    "governance.yaml",
    "pdp.yaml",
    "proposal.json",
    "scenarios.yaml",
    "session.yaml",
]


@pytest.mark.parametrize(
    "manifest",
    [
        "assistant/manifest.yaml", "payments/manifest.json", "registry/manifest.yaml", "rag/manifest.json",
        "underwriting/manifest.yaml",
    ],
)  # fmt: skip
def test_drafted_project_passes_its_own_lint_and_scenarios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str
) -> None:
    monkeypatch.chdir(tmp_path)

    made = pdp("init", "--from", ROOT / "examples" / manifest, "--json")
    lint, test, decide = pdp("manifest", "lint"), pdp("test", "--json"), pdp("decide", "proposal.json")

    assert (made.code, made.json["files"], lint.code) == (0, DRAFTED, 0)
    assert (test.code, test.json["failed"], decide.code in {0, 3}) == (0, 0, True)
    verdicts = {
        step["expect"].get("verdict")
        for scenario in yaml.safe_load(Path("scenarios.yaml").read_text())["scenarios"]
        for step in scenario.get("steps", [scenario])
    }
    assert {"ALLOW", "DENY"} <= verdicts


def test_policy_check_of_a_drafted_project_requires_no_scenarios_for_the_baseline_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opa: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    pdp("init", "--from", ROOT / "examples/registry/manifest.yaml")

    assert pdp("check").code == 0
    assert "no scenario expects a code of the concern authz" in pdp("check", "--scenarios", ".").err


def test_project_drafted_from_a_manifest_has_scopes_approvers_and_scenarios(tmp_path: Path) -> None:
    """The draft grants a scope for the tool, names an approver if needed, and has a scenario with the decision."""
    source = tmp_path / "tools.json"
    source.write_bytes((ROOT / "examples/payments/manifest.json").read_bytes())

    made = pdp("init", tmp_path / "drafted", "--from", source)

    drafted = {name: yaml.safe_load((tmp_path / "drafted" / name).read_text()) for name in DRAFTED}
    assert made.out.splitlines()[-4:] == [
        "Next:", f"  cd {tmp_path}/drafted", "  pdp test", "  pdp decide proposal.json"
    ]  # fmt: skip
    assert drafted["pdp.yaml"]["manifest"] == "../tools.json"
    assert drafted["governance.yaml"]["actions"]["initiate_wire"] == {
        "scopes": ["tools.initiate_wire"],
        "approval": {"approvers": ["tools.approver"], "quorum": 1, "expires": "PT1H"},
    }
    waits, approved, denied = (
        scenario for scenario in drafted["scenarios.yaml"]["scenarios"] if scenario["name"].startswith("initiate_wire")
    )
    assert waits["expect"] == {"verdict": "STEP_UP", "codes": ["approvals.required"]}
    assert denied["expect"] == {"verdict": "DENY", "codes": ["scopes.missing"]}
    assert approved["steps"] == [
        {"propose": waits["propose"], "expect": {"verdict": "STEP_UP"}},
        {
            "approve": {"claims": {"sub": "approver-1", "roles": ["tools.approver"]}},
            "expect": {"approval": "granted"},
        },
        {"propose": waits["propose"], "expect": {"verdict": "ALLOW"}},
    ]
    doctor = pdp("doctor", tmp_path / "drafted")
    assert (doctor.code, doctor.out) == (0, "no problems\n")


def test_drafted_scenario_gives_required_source_arguments_values_of_their_schema_types(tmp_path: Path) -> None:
    listed = {"type": "array", "items": {"type": "string"}}
    properties = {"order_id": {"type": "string", "description": "Of the shop."}, "mails": listed}
    tool = {
        "name": "refund", "description": "Refund an order.", "effect_class": "stage", "writes": "proposal",
        "provenance": {"required": ["order_id", "mails"]}, "schema": {"type": "object", "properties": properties},
    }  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps({"manifest_version": "1", "tools": [tool]}))

    assert pdp("init", tmp_path / "new", "--from", tmp_path / "m.json").code == 0

    scenarios = yaml.safe_load((tmp_path / "new/scenarios.yaml").read_text())["scenarios"]
    assert scenarios[0]["propose"]["arguments"] == {"order_id": "<order_id>", "mails": ["source-1"]}
    assert [scenario["expect"].get("rejection") for scenario in scenarios] == [None, None]


def test_init_rejects_a_manifest_without_tools(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("manifest_version: 2026.01.1\ntools: []\n")

    done = pdp("init", tmp_path / "new", "--from", tmp_path / "m.yaml")

    assert (done.code, done.out, (tmp_path / "new").exists()) == (2, "", False)
    assert done.err == f"error: {tmp_path}/m.yaml: declares no tools\n    hint: add a tool\n"


def test_workflow_of_a_project_in_a_subfolder_is_at_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    created = [pdp("init", tmp_path / "teams" / name, "--json").json["files"] for name in ("desk", "a shop")]
    assert created[0][0] == "../../.github/workflows/policy-teams-desk.yml"
    assert files(tmp_path / ".github") == ["workflows/policy-teams-a-shop.yml", "workflows/policy-teams-desk.yml"]
    workflow = yaml.safe_load((tmp_path / ".github/workflows/policy-teams-a-shop.yml").read_text())
    job = workflow["jobs"]["policy"]
    assert job["defaults"]["run"]["working-directory"] == "teams/a shop"
    assert job["steps"][1]["with"]["cache-dependency-path"] == ".github/workflows/policy-teams-a-shop.yml"
    assert job["steps"][-1]["with"]["path"].split("\n")[0] == "teams/a shop/scenarios.xml"


def test_each_checked_file_names_an_existing_schema_that_accepts_it(project: Path, tmp_path: Path) -> None:
    drafted = tmp_path / "drafted"
    assert pdp("init", drafted, "--from", project / "manifest.yaml").code == 0
    named = 0
    for file in (*project.glob("*.yaml"), *drafted.glob("*.yaml")):
        line = file.read_text().partition("\n")[0]
        if line.startswith("# yaml-language-server: $schema="):
            schema = json.loads((file.parent / line.partition("=")[2]).read_text())
            jsonschema_rs.Draft202012Validator(schema).validate(yaml.safe_load(file.read_text()))
            named += 1
    assert named == 6 + 4
