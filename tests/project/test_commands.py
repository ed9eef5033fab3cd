"""Commands read default options from `pdp.yaml`. An option on the command line overrides the default."""

import shutil
from pathlib import Path

import pytest

from tests.support.command_line import Done, pdp, session_file, written
from tests.support.payments import EXAMPLE, wire

FILES = """\
manifest: manifest.json
governance: governance.yaml
session: session.json
scenarios: [scenarios.yaml]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the payments example with a project file, and change to a subfolder."""
    folder = tmp_path / "payments"
    shutil.copytree(EXAMPLE, folder)
    (folder / "work").mkdir()
    written(folder / "pdp.yaml", FILES)
    written(folder / "work" / "wire.json", wire())
    monkeypatch.chdir(folder / "work")
    return folder


def told(project: Path) -> str:
    return f"project: {project / 'pdp.yaml'}\n"


def codes(done: Done) -> tuple[int, list[str]]:
    return done.code, [reason["code"] for reason in done.json["reasons"]]


def test_decide_needs_no_options_in_a_project(project: Path) -> None:
    done = pdp("decide", "wire.json", "--json")

    assert (codes(done), done.err) == ((3, ["limits.exceeded"]), told(project))


def test_command_line_option_overrides_project_file(project: Path, tmp_path: Path) -> None:
    session = session_file(tmp_path, claims={"limits": {"wire.auto_approved": 50_000}})

    assert codes(pdp("decide", "wire.json", "--json", "-s", session))[0] == 0


def test_manifest_option_ignores_governance_of_project(project: Path) -> None:
    alone = pdp("manifest", "lint", "../manifest.json", "--json")
    both = pdp("manifest", "lint", "../manifest.json", "-g", "../governance.yaml", "--json")

    assert alone.json != both.json
    assert pdp("manifest", "lint", "--json").json == both.json


def test_bundle_option_replaces_policies_of_project(project: Path) -> None:
    written(project / "pdp.yaml", FILES + "policies: [no-policies]\nbundle: no-bundle.tar.gz\n")

    by_policies = pdp("decide", "wire.json")
    by_bundle = pdp("decide", "wire.json", "--bundle", "other.tar.gz")

    assert "../no-policies: not a folder" in by_policies.err
    assert "other.tar.gz: cannot be read" in by_bundle.err


def test_test_command_runs_scenarios_of_the_project(project: Path) -> None:
    written(project / "pdp.yaml", FILES.replace("scenarios.yaml", "first.scenarios.yaml"))
    written(
        project / "first.scenarios.yaml",
        """
manifest: manifest.json
session: {claims: {sub: ann}}
scenarios:
  - {name: unknown, propose: {tool: shell, arguments: {}}, expect: {rejection: INVALID_TOOL_NAME}}
""",
    )

    done = pdp("test", "--json", "--engine", "embedded")

    assert (done.code, done.json["passed"], done.err) == (0, 1, told(project))


def test_pdp_project_variable_selects_or_disables_the_project_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(project / "other.yaml", FILES.replace("session.json", "gone.json"))

    monkeypatch.setenv("PDP_PROJECT", "../other.yaml")
    other = pdp("decide", "wire.json")
    monkeypatch.setenv("PDP_PROJECT", "")
    none = pdp("decide", "wire.json")

    assert (other.code, other.err.splitlines()[1]) == (2, "error: ../gone.json: no such file")
    assert (none.code, none.err) == (
        2,
        "error: no manifest given\n    hint: give it with --manifest, or as `manifest:` in pdp.yaml\n",
    )


def test_project_file_writable_by_others_is_rejected(project: Path) -> None:
    (project / "pdp.yaml").chmod(0o666)

    done = pdp("decide", "wire.json", "-m", "../manifest.json", "-s", "../session.json")

    refusal = f"{project / 'pdp.yaml'}: not trusted: other users can write to {project / 'pdp.yaml'}"
    assert (done.code, done.err) == (
        2,
        f"error: {refusal}\n    hint: correct the owner or the permissions, or set PDP_PROJECT to the file\n",
    )


def test_faults_in_project_files_are_shown_with_locations(project: Path) -> None:
    written(project / "pdp.yaml", "manifst: manifest.json\n")

    done = pdp("test")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("../pdp.yaml:1:1: unknown key `manifst`\n")


@pytest.mark.parametrize("command", ["test", "mutate"])
def test_error_about_missing_scenarios_says_where_to_name_scenario_files(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert pdp(command) == (
        2,
        "",
        "error: no scenarios given\n    hint: give it with PATH, or as `scenarios:` in pdp.yaml\n",
    )
