"""The snippets in README and docs/ work: commands and Python code run, and files are loaded.

The fences of a page are processed in order in one folder. The first line of a fence selects what happens:

```sh                    the commands run; each succeeds, or ends with the `exit code N` of its comment
```console               `$ COMMAND` runs and prints the output; `...` matches any text
```python                runs; all Python snippets of the page together print the expected output
```yaml, json, rego      is loaded as a part of the file to which the snippet belongs
```LANGUAGE NAME.EXT     is saved as that file for later fences
```LANGUAGE not run: REASON
```text                  is not processed
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

from pdp.cli.app import app
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
from tests.end_to_end.pages.test_policy_change_page import commands, printed
from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, opa_for_custom_tests, pdp, written
from tests.support.payments import REMEDY

TRANSCRIPT = "docs/policy-change.md"
"""This page is one long sequence of commands, so test_policy_change_page.py tests it."""

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md"))
    if "```" in page.read_text(encoding="utf-8")
)

PRINTS = {
    "docs/runs.md": """\
ALLOW
ALLOW
STEP_UP flow.target_untrusted flow.value_untrusted
/amount ['untrusted'] /recipient ['untrusted']
""",
    "README.md": f"""\
{{'role': 'tool', 'tool_call_id': 'call_1', 'content': '20000 sent to bene-acme-441'}}
POLICY_VIOLATION: STEP_UP: limits.exceeded: The amount is above what the subject may do without approval. {REMEDY}
""",
    "docs/application.md": f"""\
20000 sent to bene-acme-441
POLICY_VIOLATION: STEP_UP: limits.exceeded: The amount is above what the subject may do without approval. {REMEDY}
{{'wires.send': True}}
{{'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': '{{"links":["ev-1"]}}', 'is_error': False}}
{{'error': 'INVALID_PAYLOAD: arguments.evidence_ids: "ev-1" is not of type "array"'}}
47500 sent
False 47500 sent
STEP_UP
transformed deep: metformin and contrast media
LONG_QUERIES_GO_DEEP: Queries of more than 20 characters are searched deep (corrected: deep)
{{'retrieve_evidence': 'ALLOW'}}
False ('planning.missing',)
step 2: pruned: NO_DUPLICATE_IDENTICAL_CALLS: No duplicate (query, web_search) combinations within plan
True 2
4750 {{'ecb': 'monday'}}
5000 {{'ecb': 'tuesday'}}
4750 {{'ecb': 'monday'}}
ALLOW True ('effects.gate_satisfied', 'risk.acceptable') {{'sent': 20000}}
ALLOW False ('effects.gate_satisfied', 'risk.acceptable') {{'sent': 20000}}
DENY False ('idempotency.conflict',) None
The source is ["https://evidence.example/ev-1"]
{{'links': 1}}
""",
    "docs/approvals.md": """\
STEP_UP ('limits.exceeded',) pending ('payments.approver',)
requester
granted
ALLOW 47500 sent to bene-acme-441 consumed
ALLOW False 47500 sent to bene-acme-441
""",
    "docs/bundles.md": "current 1\n",
    "docs/contracts.md": "['count_words', 'refund_order', 'reply_to_customer', 'search_tickets']\nALLOW 2\n",
    "docs/execution.md": "argument count: must be 1 to 10, not 11\n['T-1042']\n",
    "docs/grants.md": "one to bob\ntwo to bob\nSTEP_UP\nSTEP_UP\n",
    "docs/policies.md": "to desk: initiate_wire\n",
    "docs/project.md": """\
20000 sent to bene-acme-441
sidecar ['initiate_wire', 'lookup_beneficiary', 'validate_payment']
None ('wires.send',)
unknown key `scopse`
('wires.send',)
ALLOW
1
""",
    "docs/replay.md": "('sanctions.not_clear',)\n",
    "docs/shadow.md": "1 0\n",
}
"""The output of all Python snippets of a page. The snippets of other pages print nothing."""

NOT_RUN = {
    ("deploy/github/README.md", "for a runner of GitHub"),
    ("README.md", "installs packages"),
    ("README.md", "installs packages, runs all tests"),
    # tests/adapters runs these snippets, because they need the frameworks.
    ("docs/adapters.md", "needs its framework"),
    ("docs/bundles.md", "asks a server"),
    ("docs/console.md", "asks a server"),
    ("docs/bundles.md", "nginx is not installed"),
    ("docs/chat.md", "needs the store of a service"),
    ("docs/monitoring.md", "needs the store of a service"),
    ("docs/logs.md", "needs an OTLP collector"),
    ("docs/logs.md", "needs the events of a service"),
    ("docs/console.md", "needs the store of a service"),
    ("docs/console.md", "opens a browser"),
    ("docs/deploy.md", "installs a service"),
    ("docs/deploy.md", "installs packages"),
    ("docs/deploy.md", "needs Docker"),
    ("docs/deploy.md", "needs Kubernetes"),
    ("docs/deploy.md", "needs the store of a service"),
    ("docs/gateway.md", "needs an MCP server"),
    ("docs/hooks.md", "changes settings of yours"),  # tests/hooks/install/test_story.py runs these snippets.
    ("docs/hooks.md", "installs packages"),
    ("docs/hooks.md", "needs the policy in your home folder"),
    ("docs/operations.md", "asks a server"),
    ("docs/operations.md", "needs Docker"),
    ("docs/service.md", "asks a server"),
    ("docs/testing.md", "installs packages"),
    ("docs/testing.md", "it needs Chromium"),
    ("docs/testing.md", "it takes minutes"),
    ("docs/testing.md", "resolves packages"),
    ("docs/service.md", "needs the store of a service"),
    ("docs/service.md", "takes minutes"),
}
"""The pages with snippets that cannot run in tests, and the reasons."""


class Fence(NamedTuple):
    """A fenced snippet of a page, with the line number where it begins."""

    line: int
    language: str
    info: str
    text: str


def fences(page: str) -> list[Fence]:
    """Return the fences of a page. Fences in lists lose their indentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Fence(
            text[: match.start()].count("\n") + 1, match[2], match[3].strip(),
            re.sub(f"^{match[1]}", "", match[4], flags=re.MULTILINE),
        )
        for match in re.finditer(r"^( *)```(\w*)(.*)\n((?:.*\n)*?)\1```$", text, re.MULTILINE)
    ]  # fmt: skip


SETTINGS = {"manifest": "examples/payments/manifest.json", "governance": "examples/payments/governance.yaml"}
STARTER = {
    f"docs/{name}.md"
    for name in (
        "bundle-diff",
        "bundles",
        "contracts",
        "execution",
        "operations",
        "project",
        "proof",
        "release",
        "scenarios",
        "testing",
    )
}
"""The pages whose snippets run in a project that `pdp init` created."""

WIRE = {"tool": "initiate_wire", "arguments": {}}


class Page:
    """Processes the fences of one page in order, in one folder."""

    def __init__(self, name: str, folder: Path, opa: Path) -> None:
        """Create the folder with a new project, or only with the examples, as in a clone of the repository."""
        folder.mkdir()
        self.folder, self.printed = folder, ""
        self.at = folder
        self.not_run: set[tuple[str, str]] = set()
        self.name = name
        for part in ("examples", "bundles"):
            (folder / part).symlink_to(ROOT / part)
        if name in STARTER:
            assert pdp("init", folder / "desk").code == 0
            for file in (folder / "desk").iterdir():
                file.rename(folder / file.name)
            (folder / "desk").rmdir()
        if "of the README" in (ROOT / name).read_text(encoding="utf-8"):
            for fence in fences("README.md"):
                if "." in fence.info:
                    self.take(fence)
        programs = folder.with_name("bin")
        programs.mkdir()
        # For commands without documented output, reduce the numbers of calls and mutants. test_policy_change_page.py
        # runs the complete gate.
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
            PDP_AUDIT_KEY="k" * 64, PDP_TRACEBACK="1",
        )  # fmt: skip

    def take(self, fence: Fence) -> None:
        """Run, save or load a fence, depending on the first line of the fence."""
        if fence.info.startswith("not run: "):
            self.not_run.add((self.name, fence.info.removeprefix("not run: ")))
        elif fence.info:
            file = self.at / fence.info
            file.parent.mkdir(parents=True, exist_ok=True)
            written(file, fence.text)
        else:
            getattr(self, f"take_{fence.language}")(fence.text)

    def take_sh(self, text: str) -> None:
        """Run the commands in one shell. The next fence starts in the folder in which the commands end."""
        assert "pip install" not in text, "it would change what the other tests run with: say `not run`"
        script = re.sub(
            r"^(.+?) +# .*exit code (\d).*$", r"if \1; then exit 99; else test $? = \2; fi", text, flags=re.MULTILINE
        )
        where = self.folder.with_name("where")
        code, out, err = self.ran("bash", "-euo", "pipefail", "-c", f"trap 'pwd > {where}' EXIT\n{script}")
        assert code == 0, f"{script}\n{out}{err}"
        self.at = Path(where.read_text().strip())

    def take_console(self, text: str) -> None:
        """Run each command and compare its output with the page."""
        for command in commands("".join(f"    {line}\n" for line in text.splitlines())):
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

    for fence in fences(name):
        if fence.language != "text":
            page.take(fence)

    assert page.printed == PRINTS.get(name, "")
    assert page.not_run == {entry for entry in NOT_RUN if entry[0] == name}


def test_every_documentation_page_with_snippets_is_tested() -> None:
    """Each fence has a known language, and every command on a page is in a fence."""
    languages = {"console", "ini", "json", "nginx", "python", "rego", "sh", "text", "yaml"}
    command = re.compile(r"^ {4,}(?:\$ |\$\(|pdp |pytest|scripts/|docker |pip |export |PDP_\w+=)", re.MULTILINE)
    unknown = [(page, fence.line) for page in PAGES for fence in fences(page) if fence.language not in languages]
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    outside = {
        page: command.findall(re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL))
        for page in pages
        if page != TRANSCRIPT
    }

    assert unknown == []
    assert {page: lines for page, lines in outside.items() if lines} == {}
    assert set(PRINTS) | {page for page, _ in NOT_RUN} <= set(PAGES)


def test_usage_lines_show_only_options_that_the_command_has() -> None:
    """A usage line has the form `pdp COMMAND ... [--option]` and is in a `text` fence."""
    usages = [
        usage
        for page in PAGES
        for fence in fences(page)
        if fence.language == "text"
        for usage in re.findall(r"^pdp .*(?:\n +.*)*", fence.text, re.MULTILINE)
    ]
    unknown = {usage: set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", usage)) - options(usage) for usage in usages}

    assert {usage: names for usage, names in unknown.items() if names} == {}
    assert usages


def options(usage: str) -> set[str]:
    """Return the options that the command in a usage line has."""
    command: Any = typer.main.get_command(app)
    for word in usage.split()[1:]:
        if not hasattr(command, "list_commands"):
            break
        command = command.get_command(None, word)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
