"""The CI files for GitHub and GitLab work in a new repository.

The steps run in bash with the variables of their `env`, as on a runner. Steps that install programs are left out. The
program `gh` is replaced by a program that records its arguments.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from typer.main import get_command

from pdp import __version__
from pdp.cli.app import app
from pdp.cli.commands.init import project_files
from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, opa_for_custom_tests, written

WORKFLOW: dict[Any, Any] = yaml.safe_load(project_files()[".github/workflows/policy.yml"])
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "deploy/github/action.yml").read_text())
JOB = WORKFLOW["jobs"]["policy"]
PAGE = (ROOT / "docs/how-to/test-in-ci.md").read_text()
GITLAB = re.findall(r'```yaml title=".gitlab-ci.yml"\n(.*?)```', PAGE, re.DOTALL)[0]
DIFF = "Compare the decisions with the base branch"
COMMENT = "Comment on the pull request"
GATE = "Check whether the bundle may be released"
COMPARING = (DIFF, COMMENT, GATE)


def named(steps: list[dict[str, Any]]) -> dict[str, str]:
    """Return the scripts of the steps by the names of the steps, without the installation."""
    return {step["name"]: step["run"] for step in steps if "run" in step and step["name"] != "Install"}


@pytest.fixture
def repository(tmp_path: Path, opa: Path) -> Path:
    """Create a repository with a new project, next to a folder with the programs of a CI runner."""
    folder, programs = tmp_path / "work", tmp_path / "bin"
    programs.mkdir()
    for name, content in project_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        written(folder / name, content)
    few = (
        'case "$1 $2" in "bundle diff" | "release check") set -- "$@" --generate 300 ;;\n'
        '"mutate --max-survivors") set -- "$@" --sample 5 --seed steps ;; esac'
    )
    written(programs / "pdp", f'#!/bin/sh\n{few}\nexec {shlex.quote(sys.executable)} -m pdp "$@"\n').chmod(0o755)
    written(programs / "gh", f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n').chmod(0o755)
    opa_for_custom_tests(programs / "opa", opa)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@desk.example")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def commit(folder: Path) -> str:
    """Commit all files and return the hash of the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")
    return git(folder, "rev-parse", "HEAD")


def bash(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in bash with the options of a CI runner."""
    beside = folder.parent
    runner = {
        "PATH": f"{beside}/bin{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "PDP_OPA": f"{beside}/bin/opa", "RUNNER_TEMP": str(beside), "GITHUB_REPOSITORY": "desk/policy",
        "GITHUB_STEP_SUMMARY": str(beside / "summary.md"), "NUMBER": "7", "GH_TOKEN": "",
    }  # fmt: skip
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder, env=environment(**runner, **variables), capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip


def run(folder: Path, base: str, steps: Collection[str]) -> dict[str, str]:
    """Run the named steps of the job, and return the output of each step that fails."""
    variables = {name: value for name, value in JOB["env"].items() if name in ("EXPLANATIONS", "SKIP")}
    done = {
        name: bash(folder, script, BASE=base, **variables)
        for name, script in named(JOB["steps"]).items()
        if name in steps
    }
    return {name: step.stdout + step.stderr for name, step in done.items() if step.returncode}


@pytest.mark.opa
@pytest.mark.process
def test_ci_of_a_new_repository_passes_without_a_comparison(repository: Path) -> None:
    steps = named(JOB["steps"]).keys() - {COMMENT}

    assert run(repository, "", steps) == {}
    assert (repository.parent / "summary.md").read_text() == "No policy to compare with.\n"
    assert (repository / "scenarios.xml").exists()
    assert (repository / "scenarios.html").exists()


@pytest.mark.opa
@pytest.mark.process
def test_ci_comments_on_a_loosening_and_blocks_the_release_until_explained(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    manifest, governance = repository / "manifest.yaml", repository / "governance.yaml"
    written(manifest, manifest.read_text().replace("2026.01.1", "2026.01.2"))
    written(governance, governance.read_text().replace("[desk.refund]", "[desk.read]"))
    commit(repository)

    failed = run(repository, base, COMPARING)
    explained = [
        {"difference": difference, "reason": "whoever reads may refund, by the desk handbook"}
        for difference in re.findall(r"^ +(d[0-9a-f]{12}) is not explained", failed[GATE], re.MULTILINE)
    ]
    written(repository / "explained.yaml", {"explained": explained})
    again = bash(repository, named(JOB["steps"])[GATE], EXPLANATIONS="explained.yaml", SKIP="packs")

    comment = (repository.parent / "comment.md").read_text()
    assert comment.startswith("<!-- pdp bundle diff -->\n")
    assert "**loosens** Calling refund\\_order requires desk.read; before, desk.refund." in comment
    assert (repository.parent / "asked").read_text().splitlines()[-1] == (
        f"api --method POST repos/desk/policy/issues/7/comments --field body=@{repository.parent}/comment.md"
    )
    assert "fail  loosening" in failed[GATE]
    assert (again.returncode, explained != []) == (0, True), again.stdout


@pytest.mark.process
@pytest.mark.usefixtures("opa")
def test_ci_does_not_mistake_a_missing_commit_for_a_first_release(repository: Path) -> None:
    done = bash(repository, named(JOB["steps"])[DIFF], BASE="0" * 40)

    assert (done.returncode, done.stdout) == (2, "")
    assert "check out with fetch-depth 0" in done.stderr


@pytest.mark.process
def test_gitlab_file_in_the_docs_runs_the_commands_of_the_workflow(repository: Path) -> None:
    """Other tests run these commands. Here, programs that record their arguments replace `pdp` and OPA."""
    [job] = [job for job in yaml.safe_load(GITLAB).values() if isinstance(job, dict) and "script" in job]
    base = git(repository, "rev-parse", "HEAD")
    script = "\n".join(job["script"])
    beside = repository.parent
    body = (
        f'{{ printf "%s " "${{0##*/}}" "${{@##*/}}"; echo; }} >> {beside}/commands\n'
        'case "$1 $2" in "bundle build") : > "$4" ;; "opa policies") echo baseline ;;\n'
        f'"opa path") echo {beside}/bin/opa ;; esac'
    )
    for name in ("pdp", "opa"):
        written(beside / "bin" / name, f"#!/bin/bash\n{body}\n").chmod(0o755)

    def commands() -> list[str]:
        file = beside / "commands"
        recorded = sorted(line.strip() for line in file.read_text().splitlines() if "pdp opa" not in line)
        file.unlink()
        return recorded

    assert run(repository, base, named(JOB["steps"]).keys() - {COMMENT}) == {}
    expected = commands()
    done = bash(
        repository, f"set -o pipefail\n{script}", CI_MERGE_REQUEST_DIFF_BASE_SHA=base, CI_PROJECT_DIR=str(repository)
    )

    assert done.returncode == 0, done.stdout + done.stderr
    recorded = commands()
    assert recorded == expected
    assert len(recorded) == 10
    made = [file for file in job["artifacts"]["paths"] if (repository / file).exists()]
    assert set(made) | set(" ".join(recorded).split()) >= {*job["artifacts"]["paths"], "scenarios.xml"}
    assert job["artifacts"]["reports"] == {"junit": "scenarios.xml"}


def test_github_action_has_the_same_steps_as_the_workflow() -> None:
    assert named(ACTION["runs"]["steps"]) == named(JOB["steps"])


@pytest.mark.parametrize("steps", [JOB["steps"], ACTION["runs"]["steps"]], ids=["workflow", "action"])
def test_ci_steps_use_known_keys_and_no_text_that_others_can_set(steps: list[dict[str, Any]]) -> None:
    """Actions are pinned to a commit. No script contains an expression whose value an outsider can choose."""
    keys = {"env", "if", "name", "run", "shell", "uses", "with", "working-directory"}

    assert [set(step) - keys for step in steps] == [set() for _ in steps]
    assert [("run" in step) + ("uses" in step) for step in steps] == [1 for _ in steps]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert not any("${{" in step.get("run", "") for step in steps)


def test_ci_files_request_minimal_permissions() -> None:
    runs = [step for step in ACTION["runs"]["steps"] if "run" in step]

    # The key `on` of the file becomes True, because YAML 1.1 reads it as a boolean.
    assert set(WORKFLOW) == {"name", True, "permissions", "jobs"}
    assert WORKFLOW[True] == {"push": {"branches": ["main"]}, "pull_request": None}
    assert WORKFLOW["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert set(JOB) == {"runs-on", "timeout-minutes", "defaults", "env", "steps"}
    assert (set(ACTION), ACTION["runs"]["using"]) == ({"name", "description", "inputs", "runs"}, "composite")
    assert all(step["shell"] == "bash" for step in runs)
    assert set(re.findall(r"inputs\.([a-z-]+)", str(ACTION))) == set(ACTION["inputs"])
    rows = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "deploy/github/README.md").read_text(), re.MULTILINE)
    assert rows == list(ACTION["inputs"])


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor/github-workflows.json", "workflows/*.yml"),
        ("custom/github-workflows-require-timeout.json", "workflows/*.yml"),
        ("vendor/dependabot.json", "dependabot.yml"),
        ("vendor/github-issue-forms.json", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor/github-issue-config.json", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_files_for_github_follow_their_schemas(schema: str, pattern: str) -> None:
    """The schemas come with check-jsonschema. Importing it takes seconds, so only its files are used."""
    package = find_spec("check_jsonschema")
    assert package is not None
    folder = Path(str(package.origin)).parent / "builtin_schemas"
    validator = jsonschema_rs.validator_for(json.loads((folder / schema).read_text(encoding="utf-8")))
    texts = [file.read_text() for file in (ROOT / ".github").glob(pattern)]
    texts += [project_files()[".github/workflows/policy.yml"]] if "workflows" in pattern else []
    # YAML reads the key `on` as true.
    contents = [text.replace("\non:\n", '\n"on":\n') for text in texts]

    found = [error.message for text in contents for error in validator.iter_errors(yaml.safe_load(text))]

    assert (len(contents) > 0, found) == (True, [])


def test_hooks_for_pre_commit_run_commands_with_known_options() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["pdp-manifest-lint", "pdp-check", "pdp-test"]
    for hook in hooks:
        assert set(hook) - {"additional_dependencies"} == {
            "id", "name", "entry", "language", "pass_filenames", "files",
        }  # fmt: skip
        re.compile(hook["files"])
        names = hook["entry"].removeprefix("pdp ").partition(" --")[0].split()
        command: Any = get_command(app)
        for name in names:
            command = command.get_command(None, name)
        command.make_context("pdp", shlex.split(hook["entry"])[len(names) + 1 :])


def test_each_job_of_our_workflows_states_its_permissions() -> None:
    workflows = [yaml.safe_load(file.read_text()) for file in (ROOT / ".github/workflows").glob("*.yml")]

    assert [job for workflow in workflows for job in workflow["jobs"].values() if "permissions" not in job] == []


@pytest.mark.process
@pytest.mark.parametrize(("version", "code"), [(__version__, 0), ("0.0", 1)])
def test_notes_of_a_release_are_its_section_of_the_changelog(version: str, code: int) -> None:
    done = subprocess.run([ROOT / "scripts/notes", version], capture_output=True, text=True, check=False)

    assert (done.returncode, "\n- " in done.stdout, "\n## " in done.stdout) == (code, code == 0, False)
