"""The built wheel works in a new environment without the repository, also with extras.

By default only a few extras are tried. PDP_EXTRAS=all tries each of them, for which uv downloads many packages.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT, payments

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN = "from pdp.cli import run_command as run; assert "
BRINGS = {
    "agent-framework": "import pdp.adapters.agent_framework",
    "all": "import cel, psycopg, z3, pdp.gateway.server, pdp.hooks.shell, pdp.opa.install, pdp.service.app",
    "cel": "from pdp.manifest.expressions.cel import compile_check; compile_check('size(plan.steps) > 1')",
    "claude-agent-sdk": "import pdp.adapters.claude_agent_sdk",
    "client": "from pdp import Client; Client('https://pdp.example', token='t')",
    "console": "import jinja2, markupsafe",
    "crewai": "import pdp.adapters.crewai",
    "fastmcp": "import pdp.adapters.fastmcp",
    "follow": f"import pdp.audit.requests; {RUN} run(['bundle', 'keygen', '-o', 'key.pem']) == 0",
    "gateway": "import pdp.gateway.server",
    "google-adk": "import pdp.adapters.google_adk",
    "hook": "import pdp.hooks.shell",
    "langchain": "import pdp.adapters.langchain",
    "llama-index": "import pdp.adapters.llama_index",
    "mcp": "import pdp.adapters.mcp",
    "openai-agents": "import pdp.adapters.openai_agents",
    "otel": "from pdp import Telemetry; Telemetry()",
    "postgres": "import psycopg, pdp.stores.sql.database",
    "proof": "import pdp.workbench.proof.solver",
    "pydantic-ai": "import pdp.adapters.pydantic_ai",
    "service": f"{RUN} run(['init', 'd']) == run(['serve', '--project', 'd/pdp.yaml', '--check-config']) == 0",
    "sidecar": "import pdp.engine.opa.aio, pdp.engine.opa.server",
    "sql": f"{RUN} run(['db', 'upgrade', 'sqlite:///pdp.db']) == 0",
    "strands": "import pdp.adapters.strands",
    "workbench": "import jinja2, pdp.opa.install",
}
"""For each extra, a program that imports or starts the parts that the extra brings."""

UV = str(Path(sys.executable).with_name("uv"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of this checkout, and the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    options = ("--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder)
    subprocess.run([UV, "build", *options, ROOT], check=True)
    [built] = folder.glob("*.whl")
    return built


def install(folder: Path, wheel: Path, extra: str = "") -> Path:
    """Create an environment with only the wheel and its dependencies, or add an extra to it. Return its `bin` folder.

    uv shares one cache of downloads between all environments.
    """
    python = folder / "env/bin/python"
    if not python.exists():
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)
    wanted = f"{wheel}[{extra}]" if extra else wheel
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wanted], check=True, timeout=PATIENCE)
    return python.parent


def run(
    programs: Path, *arguments: str | Path, cwd: Path, program: str = "pdp", **variables: str
) -> subprocess.CompletedProcess[str]:
    # Remove variables that could make the program use the repository or the developer's Python settings.
    foreign = ("PYTHON", "PDP_", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | variables
    return subprocess.run(
        [programs / program, *arguments],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.opa
@pytest.mark.process
def test_installed_wheel_decides_and_tests_a_project(tmp_path: Path, wheel: Path, opa: Path) -> None:
    """Creating an environment takes long, so all checks use the same environment."""
    programs = install(tmp_path, wheel)
    version = run(programs, "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout.split("\n")[0]) == (0, f"pdp {PROJECT['version']}")
    decides(programs, tmp_path)
    story = run(programs, "demo", cwd=tmp_path)
    assert (story.returncode, story.stderr) == (0, "")
    assert "called once" in story.stdout
    without_extra = run(programs, "db", "upgrade", "sqlite:///pdp.db", cwd=tmp_path)
    assert (without_extra.returncode, without_extra.stdout) == (2, "")
    assert without_extra.stderr == "error: this needs the extra \"sql\": pip install 'tool-pdp[sql]'\n"
    helped = run(programs, "--help", cwd=tmp_path)
    assert (helped.returncode, helped.stderr, "  bundle " in helped.stdout) == (0, "", True)
    builds_and_compares_bundles(programs, tmp_path, opa)
    install(tmp_path, wheel, "workbench")
    a_new_project_tests_itself(programs, tmp_path, opa)


def test_each_extra_has_a_program_that_tries_it() -> None:
    assert sorted(BRINGS) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.process
@pytest.mark.parametrize("extra", BRINGS if os.environ.get("PDP_EXTRAS") == "all" else ("gateway", "service"))
def test_extra_brings_the_packages_that_its_part_needs(tmp_path: Path, wheel: Path, extra: str) -> None:
    programs = install(tmp_path, wheel, extra)

    tried = run(programs, "-c", BRINGS[extra], cwd=tmp_path, program="python")

    assert tried.returncode == 0, tried.stderr


@pytest.mark.process
def test_build_of_a_commit_always_writes_the_same_bytes(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("scripts/build needs the repository")
    version = PROJECT["version"]
    for folder, umask, options in (("one", 0o022, ["--sbom"]), ("two", 0o077, [])):
        build: list[str | Path] = [ROOT / "scripts/build", *options, tmp_path / folder]
        subprocess.run(build, check=True, umask=umask, stdout=subprocess.DEVNULL)

    first, second = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two"))
    sbom = json.loads(first.pop(f"tool_pdp-{version}.cdx.json"))
    assert first == second
    assert sorted(first) == [f"tool_pdp-{version}-py3-none-any.whl", f"tool_pdp-{version}.tar.gz"]
    assert sbom["metadata"]["component"]["name"] == "tool-pdp"
    assert {"pydantic", "wasmtime"} <= {component["name"] for component in sbom["components"]}
    with tarfile.open(tmp_path / f"one/tool_pdp-{version}.tar.gz") as sdist:
        tops = {"/".join(name.split("/")[1:2]) for name in sdist.getnames()}
    assert tops == {
        ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "bundles", "deploy", "examples", "pdp",
        "policies", "pyproject.toml", "tests",
    }  # fmt: skip


def decides(programs: Path, folder: Path) -> None:
    (folder / "proposal.json").write_text(json.dumps(payments.wire()))
    example = payments.EXAMPLE

    decided = run(
        programs, "decide", "proposal.json", "-m", example / "manifest.json", "-g", example / "governance.yaml",
        "-s", example / "session.json", "--json", cwd=folder,
    )  # fmt: skip

    assert (decided.returncode, decided.stderr) == (3, "")
    answer = json.loads(decided.stdout)
    assert (answer["verdict"], [reason["code"] for reason in answer["reasons"]]) == ("STEP_UP", ["limits.exceeded"])
    assert answer["bundle_revision"].startswith("sha256:")


def builds_and_compares_bundles(programs: Path, folder: Path, opa: Path) -> None:
    """Build unsigned bundles and compare them. Without signatures, no extra of the package is needed."""
    policies = payments.EXAMPLE / "policies"
    words = ("--release", "99", "--policies", policies, "-o", "new.tar.gz")
    built = run(programs, "bundle", "build", *words, cwd=folder, PDP_OPA=str(opa))
    assert (built.returncode, built.stderr) == (0, "")
    names = (ROOT / "bundles/baseline.tar.gz", "new.tar.gz", "--generate", "10")
    compared = run(programs, "bundle", "diff", *names, cwd=folder, PDP_OPA=str(opa))
    assert (compared.returncode, compared.stderr, "sanctions" in compared.stdout) == (0, "", True)
    keys = run(programs, "bundle", "keygen", "-o", "key.pem", cwd=folder)
    assert (keys.returncode, keys.stderr) == (
        2,
        "error: this needs the extra \"follow\": pip install 'tool-pdp[follow]'\n",
    )


def a_new_project_tests_itself(programs: Path, folder: Path, opa: Path) -> None:
    """Create a project and run its scenarios, page, conventions and unit tests with the files of the wheel."""
    with_opa = {"PDP_OPA": str(opa), "XDG_CACHE_HOME": str(folder / "cache")}
    made = run(programs, "init", "desk", cwd=folder)
    desk = folder / "desk"

    tested = run(programs, "test", "--engine", "both", "--coverage", "--html", "page.html", cwd=desk, **with_opa)
    checked = run(programs, "check", cwd=desk, **with_opa)
    linted = run(programs, "manifest", "lint", "--strict", cwd=desk)
    where = run(programs, "opa", "policies", cwd=desk)

    answers = (made, where, tested, checked, linted)
    project = f"project: {desk}/pdp.yaml\n"
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(0, "")] * 2 + [(0, project)] * 3
    assert re.match(r"32 passed: 2 files, embedded, sidecar, \d+\.\d\d s\n", tested.stdout)
    assert checked.stdout == "1 file: no fault\n"
    page = (desk / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "a large refund is paid once the desk&#39;s lead has approved it" in page

    policies = Path(where.stdout.strip())
    assert policies.is_relative_to(programs.parent)
    assert re.search(r"^PASS: \d+/\d+$", opa_tested(opa, policies / "authz", desk / "policies"), re.MULTILINE)


def opa_tested(opa: Path, *folders: Path) -> str:
    done = subprocess.run(
        [opa, "test", "--timeout", "60s", "--run", "data.custom", *folders],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
