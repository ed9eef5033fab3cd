"""The examples and the baseline's own suites: what they reach, and that nothing admits a tool that nobody declared."""

import json
import os
import re
import shlex
import subprocess
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
"""The examples of tool contracts, each with policies of its own."""

WITH_POLICIES = sorted(folder.parent.name for folder in (ROOT / "examples").glob("*/policies"))


@pytest.mark.parametrize("name", ["assistant", *WITH_POLICIES])
def test_each_readme_names_its_command(name: str) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text(encoding="utf-8")

    assert f"\n    pdp test examples/{name}\n" in readme


@pytest.mark.opa
@pytest.mark.process
@pytest.mark.parametrize("folder", [f"examples/{name}" for name in WITH_POLICIES])
def test_unit_tests_of_policies_pass_as_the_readme_runs_them(folder: str, opa: Path) -> None:
    """The baseline's own are a step of `scripts/test`."""
    readme = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^ *opa (test policies.*)", readme, re.MULTILINE)
    assert "--timeout" not in command
    # A busy machine collects garbage slowly, and OPA's time-out holds for each test.
    spared = {**os.environ, "GOGC": "800"}
    done = subprocess.run(
        [opa, *shlex.split(command, comments=True)], cwd=ROOT, env=spared, capture_output=True, text=True, check=False
    )

    assert (done.returncode, "PASS: " in done.stdout) == (0, True), done.stdout[-2000:] + done.stderr


@pytest.mark.parametrize("folder", ["tests/scenarios", "examples"])
def test_each_scenario_says_why(folder: str) -> None:
    """What they come to, on both engines, and what they reach is a step of its own in `scripts/test`."""
    suites = [read_document(file).value for file in find_suites([ROOT / folder])]

    assert [scenario["name"] for suite in suites for scenario in suite["scenarios"] if not scenario.get("why")] == []


@pytest.mark.parametrize("folder", [BASELINE, EXAMPLE, RAG], ids=lambda folder: folder.name)
def test_some_scenarios_are_golden(folder: Path) -> None:
    """That each keeps to the manifest is what running it shows."""
    suites = [read_document(file).value for file in find_suites([folder])]

    assert sum(scenario.get("golden", False) for suite in suites for scenario in suite["scenarios"]) >= 6


def test_the_baselines_scenarios_expect_every_obligation() -> None:
    """Coverage counts reason codes, and an obligation has none."""
    folders = [ROOT / "policies", BASELINE / "concerns"]
    sites = rule_sites(collect(folders[0], folders))
    expected = {name for file in find_suites([BASELINE]) for name in obligations(read_document(file).value)}

    assert expected == {site.obligation for site in sites if site.obligation is not None}


def obligations(scenarios: Any) -> Iterator[str]:
    """The ids of obligations that scenarios expect."""
    for name, value in scenarios.items() if isinstance(scenarios, dict) else enumerate(scenarios):
        if name == "obligations":
            yield from (expected if isinstance(expected, str) else expected["id"] for expected in value)
        elif isinstance(value, dict | list):
            yield from obligations(value)


@pytest.mark.parametrize("name", ["assistant", *CONTRACTS])
def test_each_manifest_is_without_fault_or_warning(name: str) -> None:
    folder = ROOT / "examples" / name
    governance = ["--governance", folder / "governance.yaml"] if (folder / "governance.yaml").exists() else []

    done = pdp("manifest", "lint", folder / "manifest.yaml", *governance)

    # Their tools name no sources; the documents that these examples are of do not ask for any.
    known = "has effects and no `writes: proposal`, no `provenance`"
    unsourced = known if name in ("assistant", "underwriting") else "no such"
    warnings = [line for line in done.err.splitlines() if ": warning: " in line and not line.endswith(unsourced)]
    assert (done.code, warnings) == (0, [])


def test_the_retrieval_entry_is_the_documents() -> None:
    tools = json.loads((RAG / "manifest.json").read_bytes())["tools"]

    # Tool registry document, "RAG tools in the same model".
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


def test_a_high_risk_tool_without_idempotency_does_not_load(tmp_path: Path) -> None:
    # Tool registry document, failure class "risk mismatch".
    manifest = json.loads((EXAMPLE / "manifest.json").read_bytes())
    del manifest["tools"][2]["idempotency_required"]

    with pytest.raises(FileFaultsError) as caught:
        load_effective(written(tmp_path / "manifest.json", json.dumps(manifest, indent=1)), EXAMPLE / "governance.yaml")

    assert [(fault.message, fault.hint) for fault in caught.value.faults if not fault.warning] == [
        (
            "high risk tier without idempotency",
            "write `idempotency: {required: true}`; or declare an effect class without side effects",
        )
    ]


# No flag, variable or debug switch admits a tool that nobody declared (tool registry document, block paths: "Debug flag
# exposes undeclared tools, should never ship").

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
    """`pdp decide` on a proposal to run a shell."""
    needed = {**OPTIONS, **{f"-{name}": file for name, file in files.items()}}
    words = [word for option in needed.items() for word in option]
    return pdp("decide", "-", *words, *options, stdin=json.dumps(SHELL).encode())


def rejected(done: Done) -> bool:
    """Whether the call was rejected by the contract, and the policy never asked."""
    # Rules for it are for nobody, and that is said.
    assert done.err == "" or "warning: action `shell_exec` belongs to no tool of the manifest\n" in done.err
    outcome, trace = done.json["outcome"], done.json["trace"]
    return (done.code, outcome["status"], outcome["rejection"]["code"], done.json["verdict"], trace["in_manifest"]) == (
        4, "rejected", "INVALID_TOOL_NAME", None, False,
    )  # fmt: skip


@pytest.fixture
def options(tmp_path: Path, opa: Path) -> dict[str, list[list[object]]]:
    """Each option of `pdp decide`, with what somebody would try who wants the tool admitted."""
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
def test_no_option_admits_an_undeclared_tool(options: dict[str, list[list[object]]]) -> None:
    tried = {(name, *words[::2]): rejected(shell("--json", *words)) for name, ways in options.items() for words in ways}

    assert tried == dict.fromkeys(tried, True)


@pytest.mark.opa
def test_all_options_at_once_admit_no_undeclared_tool(options: dict[str, list[list[object]]]) -> None:
    together = [word for name in ("session", "data", "policies", "audit") for words in options[name] for word in words]

    assert rejected(shell("--json", *together))


@pytest.mark.opa
def test_every_option_was_tried(options: dict[str, list[list[object]]]) -> None:
    command = typer.main.get_command(app).get_command(None, "decide")  # type: ignore[attr-defined]

    assert {parameter.name for parameter in command.params} == set(options)


@pytest.mark.process
def test_no_variable_admits_an_undeclared_tool(tmp_path: Path) -> None:
    proposal = written(tmp_path / "proposal.json", SHELL)
    needed = [word for option in OPTIONS.items() for word in option]

    assert rejected(pdp_process("decide", proposal, *needed, "--json", stdin=b"", **dict.fromkeys(SWITCHES, "1")))


def test_what_decides_reads_no_variable() -> None:
    reading = re.compile(r"\b(environ|environb|getenv|getenvb)\b")
    readers = {
        str(file.relative_to(ROOT / "pdp"))
        for file in (ROOT / "pdp").rglob("*.py")
        if reading.search(file.read_text(encoding="utf-8"))
    }

    # The registry asks whether a tool has what its entry requires; a program gets the variables that its entry lists; a
    # sidecar is sent its token; the project file of a command or a service may be named. Programs that start here, and
    # whoever asks another one, are configured by variables. A gateway hands those that its file names to its
    # servers, and a client of hooks has its settings where a variable says.
    programs = ("cli/", "client/", "opa/", "service/", "workbench/")
    assert {reader for reader in readers if not reader.startswith(programs)} == {
        "contract/registry/registry.py", "execution/program.py", "gateway/config.py", "hooks/install/check.py",
        "hooks/install/clients.py", "project/file.py", "project/resources.py",
    }  # fmt: skip


def test_no_option_is_read_from_a_variable() -> None:
    assert [(name, option) for name, option, variable in _options(typer.main.get_command(app)) if variable] == []


def _options(command: Any, name: str = "pdp") -> Iterator[tuple[str, str, Any]]:
    for parameter in command.params:
        yield name, parameter.name, parameter.envvar
    for inner, below in getattr(command, "commands", {}).items():
        yield from _options(below, f"{name} {inner}")
