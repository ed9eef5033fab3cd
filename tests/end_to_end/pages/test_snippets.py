"""The snippets in README and docs/ work: commands and Python code run, and files are loaded.

The line "**Folder:** ..." of a page names the folder in which its snippets run, in order:

a clone of the repository    has examples/, policies/, bundles/ and deploy/
a project                    was created by `pdp init desk`, and `cd desk`
an empty folder

The first line of a fence selects what happens:

```sh                    the commands run; each succeeds, or ends with the `exit code N` of its comment.
                         Later fences have the variables that it exports
```console               `$ COMMAND` runs and prints the output; `...` matches any text
```python                runs; a following ```text title="Output" has the expected output
```yaml, json, rego      is loaded as a part of the file to which the snippet belongs
```LANGUAGE title="FILE" is saved as that file for later fences
```text, mermaid         is not processed

A comment in the line before a fence changes this:

<!-- not run: REASON -->         for the reasons in NOT_RUN
<!-- until URL answers -->       the commands run in the background until the test ends
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from pdp.documents import read_record
from pdp.engine.data import read_data
from pdp.hooks import starter
from pdp.hooks.rules import REPOSITORY_FILE, repository_rules
from pdp.hooks.shapes import HookCommands
from pdp.manifest.load import load_effective, load_manifest
from pdp.project.file import read_project
from pdp.workbench.gate.gate import read_explanations
from pdp.workbench.mutation.equivalents import read_equivalents
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, opa_for_custom_tests, pdp, written

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*/*.md"), *(ROOT / "deploy").rglob("*.md"))
    if "```" in page.read_text(encoding="utf-8") and page.parent.name != "adr"
)

NOT_RUN = {
    "asks a server",
    "changes settings of yours",
    "for a runner of GitHub",
    "installs a service",
    "installs packages",
    "installs packages, runs all tests",
    "needs an MCP server",
    "needs an OTLP collector",
    "needs Docker",
    "needs its framework",
    "needs Kubernetes",
    "needs the events of a service",
    "needs the policy in your home folder",
    "needs the store of a service",
    "opens a browser",
    "takes minutes",
}
"""The reasons why a snippet cannot run in tests."""

OUTPUT = 'title="Output"'


class Fence(NamedTuple):
    """A fenced snippet of a page, with the line number where it begins."""

    line: int
    language: str
    info: str
    comment: str
    text: str

    @property
    def file(self) -> str:
        """The name of the file that the snippet is, or nothing."""
        titled = re.fullmatch(r'title="([\w./-]+\.\w+|\.?[\w./-]*/\w+)"', self.info)
        return titled[1] if titled else ""


def fences(page: str) -> list[Fence]:
    """Return the fences of a page. Fences in lists lose their indentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Fence(
            text[: match.start(3)].count("\n") + 1, match[3], match[4].strip(), match[1] or "",
            re.sub(f"^{match[2]}", "", match[5], flags=re.MULTILINE),
        )
        for match in re.finditer(
            r"^(?: *<!-- (.*?) -->\n)?( *)```(\w*)(.*)\n((?:.*\n)*?)\2```$", text, re.MULTILINE
        )
    ]  # fmt: skip


class Command(NamedTuple):
    """A command on a page, with its expected output lines and exit code."""

    text: str
    shown: list[str]
    code: int


def commands(text: str) -> list[Command]:
    """Return the commands of a console snippet. The exit code is from a following `$ echo $?`."""
    result: list[Command] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            if line:
                result[-1].shown.append(line)
            continue
        command = line[2:]
        if command == "echo $?":
            result[-1] = result[-1]._replace(code=int(next(lines)))
            continue
        until = "EOF" if command.endswith("<<'EOF'") else None
        while command.endswith("\\") or (until is not None and not command.endswith(f"\n{until}")):
            command += "\n" + next(lines)
        result.append(Command(command, [], 0))
    return result


def printed(shown: list[str], out: str) -> bool:
    """Return whether `out` matches the page, where `...` matches any text, and `...` alone in a line any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in shown
        if line
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in out.splitlines() if line)) is not None


@pytest.mark.parametrize(
    ("shown", "out", "expected"),
    [
        (["a ... c"], "a b c\n", True),
        (["a", "...", "d"], "a\nb\n\nc\nd\n", True),
        (["a", "...", "d"], "a\nd\n", True),
        (["a", "d"], "a\nb\nd\n", False),
        (["a (x)"], "a (x) b\n", False),
        ([], "a\n", False),
    ],
)
def test_output_shown_on_the_page_must_match_the_printed_output(shown: list[str], out: str, expected: bool) -> None:
    assert printed(shown, out) is expected


SETTINGS = {"manifest": "examples/payments/manifest.json", "governance": "examples/payments/governance.yaml"}
WIRE = {"tool": "initiate_wire", "arguments": {}}


class Page:
    """Processes the fences of one page in order, in one folder."""

    def __init__(self, name: str, folder: Path, opa: Path) -> None:
        """Create the folder that the page names."""
        folder.mkdir()
        self.folder, self.printed = folder, ""
        self.at = folder
        self.name = name
        self.running: list[subprocess.Popen[bytes]] = []
        named = re.search(r"^\*\*Folder:\*\* (an? [\w ]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        kind = named[1] if named else "an empty folder"
        if kind == "a clone of the repository":
            # The snippets may write into the examples, so these are copies.
            shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
            for part in ("bundles", "policies", "deploy", "scripts", "docs"):
                (folder / part).symlink_to(ROOT / part)
        elif kind == "a project":
            assert pdp("init", folder / "desk").code == 0
            for file in (folder / "desk").iterdir():
                file.rename(folder / file.name)
            (folder / "desk").rmdir()
        else:
            assert kind == "an empty folder", kind
        programs = folder.with_name("bin")
        programs.mkdir()
        # Reduce the numbers of calls and mutants, which take minutes.
        fewer = (
            'case "$1 $2" in "bundle diff") set -- "$@" --generate 3000 ;;\n'
            '"release check") set -- "$@" --generate 300 --skip mutation ;;\n'
            '"mutate " | "mutate hours.scenarios.yaml") set -- "$@" --sample 3 --seed page ;; esac'
        )
        for program, before in (("pdp", fewer), ("pytest", "")):
            run = f'exec {shlex.quote(sys.executable)} -m {program} "$@"'
            written(programs / program, f"#!/bin/sh\n{before}\n{run}\n").chmod(0o755)
        self.opa = opa_for_custom_tests(programs / "opa", opa)
        self.environment = environment(
            PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(ROOT), PDP_OPA=str(self.opa),
            PDP_TRACEBACK="1",
        )  # fmt: skip

    def take(self, fence: Fence) -> None:
        """Run, save, load or compare a fence, depending on its first line and the comment before it."""
        if fence.comment.startswith("not run: "):
            assert fence.comment.removeprefix("not run: ") in NOT_RUN
        elif fence.comment.startswith("until "):
            self.start(fence.text, fence.comment.split()[1])
        elif fence.file:
            file = self.at / fence.file
            file.parent.mkdir(parents=True, exist_ok=True)
            written(file, fence.text)
        elif fence.info == OUTPUT:
            assert printed(fence.text.splitlines(), self.printed), self.printed
            self.printed = ""
        elif fence.language not in ("text", "mermaid"):
            assert not self.printed, f"the page does not show this output: {self.printed}"
            getattr(self, f"take_{fence.language}")(fence.text)

    def start(self, text: str, url: str) -> None:
        """Run commands in the background, and wait until the URL answers."""
        log = self.folder.with_name(f"log-{len(self.running)}")
        with log.open("wb") as output:
            started = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=self.at, env=self.environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.running.append(started)
        give_up = time.monotonic() + PATIENCE
        while True:
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            try:
                httpx.get(url, timeout=5, verify=False)  # noqa: S501 - the certificate may be self-signed
            except httpx.TransportError:
                time.sleep(0.1)
            else:
                return

    def end(self) -> None:
        """End the commands in the background."""
        for started in self.running:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
            started.wait(PATIENCE)

    def take_sh(self, text: str) -> None:
        """Run the commands in one shell. Later fences have its last folder and its exported variables."""
        assert "pip install" not in text, "it would change what the other tests run with: say `not run`"
        script = re.sub(
            r"^(.+?) +# .*exit code (\d).*$", r"if \1; then exit 99; else test $? = \2; fi", text, flags=re.MULTILINE
        )
        where, variables = self.folder.with_name("where"), self.folder.with_name("variables")
        ended = f"trap 'pwd > {where}; env -0 > {variables}' EXIT"
        code, out, err = self.ran("bash", "-euo", "pipefail", "-c", f"{ended}\n{script}")
        assert code == 0, f"{script}\n{out}{err}"
        self.at = Path(where.read_text().strip())
        self.environment = dict(each.split("=", 1) for each in variables.read_text().split("\0") if each)

    def take_console(self, text: str) -> None:
        """Run each command and compare its output with the page."""
        for command in commands(text):
            code, out, err = self.ran("bash", "-c", command.text)
            assert code == command.code, f"{command.text}\n{out}{err}"
            assert printed(command.shown, out), f"{command.text}\n{out}{err}"

    def take_python(self, text: str) -> None:
        code, out, err = self.ran(sys.executable, "-c", text)
        assert (code, err) == (0, "")
        self.printed += out

    def take_rego(self, text: str) -> None:
        """Compile the snippet together with the baseline. If the snippet has no package, add a package."""
        module = text if "\npackage " in f"\n{text}" else f"package snippet\n\nimport data.authz.lib.reason\n\n{text}"
        file = written(self.folder.with_name("snippet.rego"), module)
        code, _, err = self.ran(str(self.opa), "check", "--strict", str(ROOT / "policies/authz"), str(file))
        assert (code, err) == (0, ""), module

    def take_json(self, text: str) -> None:
        """Load the snippet as policy data if its keys are keys of policy data, and otherwise as JSON."""
        if {"directory", "settings"} & json.loads(text).keys():
            read_data([written(self.folder / "snippet.json", text)])

    def take_yaml(self, text: str) -> None:
        """Load the snippet as the type of file to which its keys belong."""
        part = yaml.safe_load(text)
        file = written(self.folder / "snippet.yaml", text)
        try:
            if "commands_without" in part:
                self.load_rules(part, file)
            elif "runs" in part:
                assert read_record(file, HookCommands).programs
            elif "oidc" in part:
                from pdp.service.settings import OidcSettings

                assert [OidcSettings(**provider) for provider in part["oidc"]]
            else:
                self.load(part, file)
        finally:
            file.unlink()

    def load(self, part: Any, file: Path) -> None:
        """Load a file that contains this snippet. Its keys select the loader, which raises an error for a fault."""
        entry = part[0] if isinstance(part, list) else part
        names = entry.keys()
        if "mutant" in names:
            assert read_equivalents([file])
        elif "explained" in names:
            assert read_explanations(file)
        elif names <= {"directory", "settings"}:
            assert read_data([file]) == part
        elif "expect" in names:
            scenario = {"name": "one", "session": {"claims": {"sub": "ann"}}, "propose": WIRE, **part}
            settings = {**SETTINGS, "tools": "examples/payments/tools.py"}
            assert load_suite(written(file, {**settings, "scenarios": [scenario]})).scenarios
        elif "schema" in names:
            self.load_tools(part, file)
        elif "check" in names:
            self.load({"invariants": part}, file)
        elif "invariants" in names:
            types = {
                "subquestion_ids": {"type": "array", "items": {"type": "string"}},
                "web_search": {"type": "boolean"},
            }
            tool = {"name": "retrieval_llm", "schema": {"type": "object", "properties": types}, **part}
            self.load_tools([{**tool, "effect_class": "read-internal"}], file)
        elif "programs" in names:
            load_effective(self.folder / "tools.yaml", file)
        elif "actions" in names:
            texts = {"text": {"type": "string"}, "recipient": {"type": "string", "maxLength": 40}}
            schema = {"type": "object", "required": ["text"], "properties": texts}
            tools = [{"name": name, "schema": schema, "effect_class": "stage"} for name in part["actions"]]
            manifest = written(self.folder / "tools.yaml", {"manifest_version": "2026.01.1", "tools": tools})
            load_effective(manifest, file)
        else:
            assert read_project(file).model_fields_set == names

    def load_rules(self, part: dict[str, Any], file: Path) -> None:
        """Load a repository's rules for hooks. The rules may name tools of the starter files and of two MCP servers."""
        file.with_name(REPOSITORY_FILE).write_bytes(file.read_bytes())
        folder = Path(starter.__file__).parent
        entries = load_effective(folder / "manifest.yaml", folder / "governance.yaml").tools
        tools = [*entries, "mcp__github__create_issue", "mcp__jira__create_issue"]
        rules = repository_rules([file.parent], tools, ["git"])
        assert {name: len(getattr(rules, name)) for name in part} == {name: len(part[name]) for name in part}

    def load_tools(self, tools: list[Any], file: Path) -> None:
        """Load entries of a manifest, and keep the manifest for the next snippet of governance."""
        manifest = {"manifest_version": "2026.01.1", "tools": tools}
        assert load_manifest(written(file.with_name("tools.yaml"), manifest)).tools

    def ran(self, *command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            command, cwd=self.at, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        return done.returncode, done.stdout, done.stderr


@pytest.mark.opa
@pytest.mark.process
@pytest.mark.parametrize("name", PAGES)
def test_every_snippet_of_a_documentation_page_works(name: str, tmp_path: Path, opa: Path) -> None:
    page = Page(name, tmp_path / "work", opa)

    try:
        for fence in fences(name):
            page.take(fence)
    finally:
        page.end()

    assert not page.printed, f"the page does not show this output: {page.printed}"


def test_every_snippet_has_a_known_language() -> None:
    languages = {"console", "ini", "json", "mermaid", "nginx", "python", "rego", "sh", "text", "toml", "yaml"}

    unknown = [(page, fence.line) for page in PAGES for fence in fences(page) if fence.language not in languages]

    assert unknown == []
