"""The examples and baseline scenarios are complete, and no option of `pdp decide` allows an undeclared tool."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pdp.cli.app import app
from pdp.documents import read_document
from pdp.errors import FileFaultsError
from pdp.manifest.load import load_effective
from pdp.opa.modules import collect
from pdp.opa.rules import rule_sites
from pdp.workbench.scenarios.files.suite import find_suites
from tests.support import ROOT
from tests.support.command_line import OPTIONS, Done, pdp, pdp_process, written
from tests.support.payments import EXAMPLE

RAG = ROOT / "examples/rag"
BASELINE = ROOT / "tests/scenarios"
SHELL = {"tool": "shell_exec", "arguments": {"command": "id"}}


CONTRACTS = ("clinical", "memory", "underwriting", "workstation")
"""The examples about tool contracts. Each has its own policies."""

WITH_POLICIES = sorted(folder.parent.name for folder in (ROOT / "examples").glob("*/policies"))


@pytest.mark.parametrize("name", ["assistant", *WITH_POLICIES])
def test_each_example_readme_names_its_command(name: str) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text(encoding="utf-8")

    assert f"\n    pdp test examples/{name}\n" in readme


@pytest.mark.parametrize("folder", [f"examples/{name}" for name in WITH_POLICIES])
def test_readme_has_the_command_that_runs_the_policy_unit_tests(folder: str) -> None:
    """In `scripts/test`, a separate step runs these unit tests."""
    readme = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^ *opa (test policies.*)", readme, re.MULTILINE)

    assert shlex.split(command) == ["test", "policies", f"{folder}/policies", "--run", "data.custom"]


@pytest.mark.parametrize("folder", ["tests/scenarios", "examples"])
def test_each_example_scenario_says_why_the_scenario_exists(folder: str) -> None:
    """In `scripts/test`, a separate step runs the scenarios on both engines."""
    suites = [read_document(file).value for file in find_suites([ROOT / folder])]

    assert [scenario["name"] for suite in suites for scenario in suite["scenarios"] if not scenario.get("why")] == []


@pytest.mark.parametrize("folder", [BASELINE, EXAMPLE, RAG], ids=lambda folder: folder.name)
def test_each_suite_has_at_least_six_golden_scenarios(folder: Path) -> None:
    """Golden scenarios also check the manifest, so each suite needs some golden scenarios."""
    suites = [read_document(file).value for file in find_suites([folder])]

    assert sum(scenario.get("golden", False) for suite in suites for scenario in suite["scenarios"]) >= 6


def test_baseline_scenarios_expect_every_obligation() -> None:
    """The coverage report counts reason codes but not obligations, so this test counts the obligations."""
    folders = [ROOT / "policies", BASELINE / "concerns"]
    sites = rule_sites(collect(folders[0], folders))
    expected = {name for file in find_suites([BASELINE]) for name in obligations(read_document(file).value)}

    assert expected == {site.obligation for site in sites if site.obligation is not None}


def obligations(scenarios: Any) -> Iterator[str]:
    for name, value in scenarios.items() if isinstance(scenarios, dict) else enumerate(scenarios):
        if name == "obligations":
            yield from (expected if isinstance(expected, str) else expected["id"] for expected in value)
        elif isinstance(value, dict | list):
            yield from obligations(value)


@pytest.mark.parametrize("name", ["assistant", *CONTRACTS])
def test_manifest_of_each_example_has_no_fault_or_warning(name: str) -> None:
    folder = ROOT / "examples" / name
    governance = ["--governance", folder / "governance.yaml"] if (folder / "governance.yaml").exists() else []

    done = pdp("manifest", "lint", folder / "manifest.yaml", *governance)

    # The documents of these two examples require no sources, so the warning about missing sources is accepted.
    known = "has effects and no `writes: proposal`, no `provenance`"
    unsourced = known if name in ("assistant", "underwriting") else "no such"
    warnings = [line for line in done.err.splitlines() if ": warning: " in line and not line.endswith(unsourced)]
    assert (done.code, warnings) == (0, [])


def test_retrieval_manifest_entry_equals_the_entry_in_the_document() -> None:
    tools = json.loads((RAG / "manifest.json").read_bytes())["tools"]

    # The entry is copied from the section "RAG tools in the same model" of the tool registry document.
    assert tools[0] == {
        "name": "retrieve_documents",
        "schema": {
            "type": "object",
            "required": ["corpus", "query"],
            "properties": {"corpus": {"type": "string"}, "query": {"type": "string"}},
        },
        "pdp_action": "retrieve_documents",
        "risk_tier": "medium",
    }


def test_high_risk_tool_without_idempotency_does_not_load(tmp_path: Path) -> None:
    # The tool registry document calls this failure "risk mismatch".
    manifest = json.loads((EXAMPLE / "manifest.json").read_bytes())
    del manifest["tools"][2]["idempotency_required"]

    with pytest.raises(FileFaultsError) as caught:
        load_effective(written(tmp_path / "manifest.json", json.dumps(manifest, indent=1)), EXAMPLE / "governance.yaml")

    assert [(fault.message, fault.hint) for fault in caught.value.faults if not fault.warning] == [
        (
            "a tool with a high risk tier needs idempotency",
            "write `idempotency: {required: true}`; or declare an effect class without side effects",
        )
    ]


# No flag, variable or debug switch allows an undeclared tool, as the tool registry document demands (block paths:
# "Debug flag exposes undeclared tools, should never ship").

OPEN_CONCERN = """# METADATA
# title: Open
# description: Whoever asks may do whatever there is.
package custom.concerns.open

# METADATA
# title: Always
# description: Everything is allowed.
# custom:
#   code: open.always
allow contains {"code": "open.always", "message": "Everything is allowed.", "details": {}}
"""

SWITCHES = (
    "PDP_DEBUG", "PDP_ALLOW_ALL", "PDP_ALLOW_ALL_TOOLS", "PDP_ADMIN", "PDP_BYPASS", "PDP_DISABLE", "PDP_DRY_RUN",
    "PDP_ENV", "PDP_EXPOSE_ALL_TOOLS", "PDP_INSECURE", "PDP_MODE", "PDP_NO_MANIFEST", "PDP_PERMISSIVE",
    "PDP_SKIP_CHECKS", "PDP_TEST", "PDP_TRACEBACK", "PDP_UNSAFE", "DEBUG", "DEV", "DEVELOPMENT", "ENV", "ENVIRONMENT",
    "TESTING",
)  # fmt: skip


def shell(*options: object, **files: object) -> Done:
    """Run `pdp decide` on a proposal to call an undeclared tool that runs a shell."""
    needed = {**OPTIONS, **{f"-{name}": file for name, file in files.items()}}
    words = [word for option in needed.items() for word in option]
    return pdp("decide", "-", *words, *options, stdin=json.dumps(SHELL).encode())


def rejected(done: Done) -> bool:
    """Return whether the call was rejected by the contract, before the policy was evaluated."""
    # If governance names the undeclared tool, the command prints a warning.
    assert done.err == "" or "warning: action `shell_exec` belongs to no tool of the manifest\n" in done.err
    outcome, trace = done.json["outcome"], done.json["trace"]
    return (done.code, outcome["status"], outcome["rejection"]["code"], done.json["verdict"], trace["in_manifest"]) == (
        4, "rejected", "INVALID_TOOL_NAME", None, False,
    )  # fmt: skip


@pytest.fixture
def options(tmp_path: Path, opa: Path) -> dict[str, list[list[object]]]:
    """Return values for each option of `pdp decide` that might allow the undeclared tool."""
    concern = tmp_path / "custom/concerns/open"
    concern.mkdir(parents=True)
    (concern / "open.rego").write_text(OPEN_CONCERN)
    data = {"settings": {"debug": True, "allow_all": True}, "directory": {"tools": {"shell_exec": {"allowed": True}}}}
    session = json.loads((EXAMPLE / "session.json").read_bytes())
    session["claims"] |= {"admin": True, "debug": True, "scope": "shell_exec *", "roles": ["admin"]}
    session |= {"config": {"debug": True}, "facts": {"debug": True}, "state": {"debug": True}, "agent": "shell_exec"}
    governance = "actions: {shell_exec: {scopes: [], effect_class: pure, risk_tier: low}}"
    return {
        "proposal": [],
        "manifest": [],
        "session": [["-s", written(tmp_path / "session.json", session)]],
        "governance": [["-g", written(tmp_path / "governance.yaml", governance)]],
        "data": [["--data", written(tmp_path / "data.json", data)]],
        "policies": [["--policies", tmp_path]],
        "bundle": [["--bundle", ROOT / "bundles/baseline.tar.gz"]],
        "engine": [["--engine", "embedded"], ["--engine", "sidecar"]],
        "opa_url": [["--engine", "sidecar", "--opa-url", "http://127.0.0.1:9"]],
        "audit": [["--audit", tmp_path / "audit.jsonl"]],
        "as_json": [[]],
    }


@pytest.mark.opa
def test_no_option_of_decide_allows_an_undeclared_tool(options: dict[str, list[list[object]]]) -> None:
    tried = {(name, *words[::2]): rejected(shell("--json", *words)) for name, ways in options.items() for words in ways}

    assert tried == dict.fromkeys(tried, True)


@pytest.mark.opa
def test_all_options_of_decide_together_allow_no_undeclared_tool(options: dict[str, list[list[object]]]) -> None:
    together = [word for name in ("session", "data", "policies", "audit") for words in options[name] for word in words]

    assert rejected(shell("--json", *together))


@pytest.mark.opa
def test_every_option_of_decide_is_tried_with_an_undeclared_tool(options: dict[str, list[list[object]]]) -> None:
    command = typer.main.get_command(app).get_command(None, "decide")  # type: ignore[attr-defined]

    assert {parameter.name for parameter in command.params} == set(options)


@pytest.mark.process
def test_no_environment_variable_allows_an_undeclared_tool(tmp_path: Path) -> None:
    proposal = written(tmp_path / "proposal.json", SHELL)
    needed = [word for option in OPTIONS.items() for word in option]

    assert rejected(pdp_process("decide", proposal, *needed, "--json", stdin=b"", **dict.fromkeys(SWITCHES, "1")))


def test_decision_code_reads_no_environment_variable() -> None:
    reading = re.compile(r"\b(environ|environb|getenv|getenvb)\b")
    readers = {
        str(file.relative_to(ROOT / "pdp"))
        for file in (ROOT / "pdp").rglob("*.py")
        if reading.search(file.read_text(encoding="utf-8"))
    }

    # These modules may read variables, because the variables do not decide calls. The registry checks the requirements
    # of tools. Programs get the variables that the manifest lists. The sidecar gets its token. The project file and the
    # settings folder of a client may be named by a variable. The gateway passes configured variables to its servers.
    programs = ("cli/", "client/", "opa/", "service/", "workbench/")
    assert {reader for reader in readers if not reader.startswith(programs)} == {
        "contract/registry/registry.py", "execution/program.py", "gateway/config.py", "hooks/install/check.py",
        "hooks/install/clients.py", "project/file.py", "project/resources.py",
    }  # fmt: skip


def test_no_option_of_decide_is_read_from_an_environment_variable() -> None:
    assert [(name, option) for name, option, variable in _options(typer.main.get_command(app)) if variable] == []


def _options(command: Any, name: str = "pdp") -> Iterator[tuple[str, str, Any]]:
    for parameter in command.params:
        yield name, parameter.name, parameter.envvar
    for inner, below in getattr(command, "commands", {}).items():
        yield from _options(below, f"{name} {inner}")
