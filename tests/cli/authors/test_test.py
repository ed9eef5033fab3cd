"""`pdp test`: output, report files and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pdp.cli.commands.test import run_after_changes
from pdp.engine.bundle.file import read_bundle
from pdp.errors import UsageError
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.running.runner import selection
from tests.support import ROOT
from tests.support.command_line import environment, pdp
from tests.support.scenario_files import READ, one, project

ALLOW = one(name="allowed", propose=READ, expect={"verdict": "ALLOW"}, golden=True)
PROBE = """\
# METADATA
# title: Probe
# description: Denies everything.
package custom.concerns.probe

import data.authz.lib.reason

# METADATA
# title: Probed
# description: This denies every call.
# custom:
#   code: probe.a
deny contains reason.new(rego.metadata.rule(), {}) if input.action.name
"""
WRONG = one(
    name="wrong",
    why="the document says so",
    propose=READ,
    expect={"verdict": "DENY", "codes": ["scopes.missing"], "executed": False},
)


ASKED = ("--engine", "embedded")  # The tests use one engine, because the messages do not depend on the engine.


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a temporary folder, so that paths in messages are relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_seconds(text: str) -> str:
    """Return the summary of the test run without its duration."""
    return "\n".join(line.rpartition(", ")[0] if line.endswith(" s") else line for line in text.splitlines())


def test_passed_scenarios_exit_with_0() -> None:
    project(Path(), ALLOW)

    done = pdp("test", ".", *ASKED)

    assert (done.code, done.err) == (0, "")
    assert without_seconds(done.out) == (
        "1 passed: 1 file, embedded\ngolden: 1, of which 1 schema-valid and 1 in the manifest"
    )


@pytest.mark.opa
def test_failed_scenario_is_explained(opa: Path) -> None:
    """Expected and actual values are aligned. Each rule that fired or stopped early is shown with its location."""
    project(Path(), ALLOW, WRONG)

    done = pdp("test", "scenarios.json", *ASKED)

    rules = ROOT / "policies/authz/concerns"
    lines = [line for line in done.out.splitlines() if "Every clause" not in line]
    places = {
        code: f"policies/authz/concerns/{code.split('.')[0]}/{code.split('.')[0]}.rego:{line}"
        for code, line in (("effects.gate_satisfied", 0), ("risk.acceptable", 0), ("scopes.missing", 0))
        for line in [_line(rules, code)]
    }
    assert done.code == 1
    assert lines[:15] == [
        "FAILED wrong [embedded]",
        "  scenarios.json:1",
        "  why: the document says so",
        f"  propose: {json.dumps(READ)}",
        lines[4],
        "",
        "              expected                                     | actual",
        "  verdict     DENY                                         | ALLOW",
        "  codes       scopes.missing                               | effects.gate_satisfied",
        "                                                           | risk.acceptable",
        "  executed    false                                        | true",
        "",
        "  rules that fired:",
        f"    allow       effects.gate_satisfied  {places['effects.gate_satisfied']}",
        f"    allow       risk.acceptable  {places['risk.acceptable']}",
    ]
    assert lines[4].startswith('  session: {"claims": {')
    at = lines.index("  rules that should have fired:")
    assert lines[at + 1] == f"    scopes.missing  {places['scopes.missing']}"
    assert lines[at + 2].startswith("      stopped at: count(missing) > 0 (")
    assert lines[at + 3] == "      missing = []"
    assert without_seconds("\n".join(lines[at + 5 :])) == (
        "1 passed, 1 failed: 1 file, embedded\ngolden: 1, of which 1 schema-valid and 1 in the manifest"
    )


def _line(rules: Path, code: str) -> int:
    """Return the line number of the Rego rule whose METADATA comment has this code."""
    concern = code.split(".", maxsplit=1)[0]
    lines = (rules / concern / f"{concern}.rego").read_text().splitlines()
    code_at = lines.index(f"#   code: {code}")
    return next(at for at, line in enumerate(lines, 1) if at > code_at and not line.startswith("#"))


def test_failed_scenario_shows_why_its_proposal_was_rejected() -> None:
    project(Path(), one(propose={"tool": "shell"}, expect={"rejection": "INVALID_TOOL_NAME", "verdict": "DENY"}))

    done = pdp("test", ".", *ASKED)

    assert done.code == 1
    assert "\n  stopped by the enforcement point: 'shell' is not a tool of manifest 7\n" in done.out
    assert "rules that" not in done.out


def test_control_characters_in_scenario_names_are_escaped() -> None:
    project(Path(), one(name="evil\x1b[2J\nname", propose=READ, expect={"result": "\x1b[31m"}))

    done = pdp("test", ".", *ASKED)

    assert done.code == 1
    assert done.out.startswith("FAILED evil\\x1b[2J\\nname [embedded]\n")
    assert "\x1b" not in done.out


def test_json_report_is_stable_and_complete() -> None:
    project(Path(), ALLOW, WRONG)

    first, second = pdp("test", ".", "--json", *ASKED), pdp("test", ".", "--json", *ASKED)

    suite = load_suite(Path("scenarios.json"))
    report = first.json
    revision = report["suites"][0].pop("bundle_revision")
    diagnosis = report["suites"][0]["scenarios"][1].pop("diagnosis")
    assert (first.code, first.err, first.out) == (1, "", second.out)
    assert revision.startswith("sha256:")
    assert [each["code"] for each in diagnosis["fired"]] == ["effects.gate_satisfied", "risk.acceptable"]
    assert report == {
        "passed": 1,
        "failed": 1,
        "golden": {
            "total": 1, "in_manifest": 1, "schema_valid": 1, "tools": {"right": 0, "of": 0},
            "arguments": {"right": 0, "of": 0},
        },
        "coverage": None,
        "suites": [
            {
                "file": "scenarios.json",
                "engine": "embedded",
                "manifest_version": "7",
                "manifest_digest": suite.manifest.digest,
                "scenarios": [
                    {
                        "name": "allowed", "why": None, "golden": True, "line": 1, "passed": True, "error": None,
                        "steps": [
                            {
                                "action": "propose", "line": 1, "tool": "read_note",
                                "expected": {"verdict": "ALLOW"}, "actual": {"verdict": "ALLOW"}, "mismatches": [],
                            }
                        ],
                        "diagnosis": None,
                    },
                    {
                        "name": "wrong", "why": "the document says so", "golden": False, "line": 1, "passed": False,
                        "error": None,
                        "steps": [
                            {
                                "action": "propose", "line": 1, "tool": "read_note",
                                "expected": {"verdict": "DENY", "codes": ["scopes.missing"], "executed": False},
                                "actual": {
                                    "verdict": "ALLOW", "codes": ["effects.gate_satisfied", "risk.acceptable"],
                                    "executed": True,
                                },
                                "mismatches": [
                                    {"key": "verdict", "expected": "DENY", "actual": "ALLOW"},
                                    {
                                        "key": "codes", "expected": ["scopes.missing"],
                                        "actual": ["effects.gate_satisfied", "risk.acceptable"],
                                    },
                                    {"key": "executed", "expected": False, "actual": True},
                                ],
                            }
                        ],
                    },
                ],
            }
        ],
    }  # fmt: skip


def test_junit_report_has_a_test_suite_for_each_scenario_file_and_engine() -> None:
    """The report has a test suite for each file and engine. Characters that XML does not allow are replaced."""
    project(Path(), ALLOW, {**WRONG, "name": "wrong \x00 <&>"})

    done = pdp("test", ".", "--junit", "a/new/folder/out.xml", *ASKED)

    root = ET.fromstring(Path("a/new/folder/out.xml").read_text())  # noqa: S314 - written by this test
    suite = root[0]
    cases = suite.findall("testcase")
    assert done.code == 1
    counts = {"tests": "2", "failures": "1", "errors": "0", "skipped": "0"}
    assert (root.tag, root.attrib) == ("testsuites", {"name": "pdp test", **counts})
    assert suite.attrib == {"name": "scenarios.json [embedded]", **counts, "time": suite.attrib["time"]}
    assert [case.attrib for case in cases] == [
        {
            "classname": "scenarios.json [embedded]", "name": name, "file": "scenarios.json", "line": "1",
            "time": case.attrib["time"],
        }
        for case, name in zip(cases, ("allowed", "wrong \N{REPLACEMENT CHARACTER} <&>"), strict=True)
    ]  # fmt: skip
    assert 0 < sum(float(case.attrib["time"]) for case in cases) <= float(suite.attrib["time"]) + 0.001
    failure = cases[1][0]
    assert (failure.tag, failure.attrib) == ("failure", {"message": "not as expected: verdict, codes, executed"})
    assert str(failure.text).startswith("FAILED wrong \\x00 <&> [embedded]\n  scenarios.json:1\n")
    assert len(cases[0]) == 0


@pytest.mark.process
def test_reports_are_written_even_if_output_is_closed() -> None:
    """The reader of the output closes the pipe before the command writes to it."""
    project(Path(), ALLOW)
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "pdp", "test", ".", "--junit", "out.xml", "--html", "out.html", *ASKED],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment(),
    )  # fmt: skip

    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert Path("out.xml").read_text().startswith("<?xml")
    assert "allowed" in Path("out.html").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_is_complete_even_if_a_report_cannot_be_written() -> None:
    project(Path(), ALLOW)

    done = pdp("test", ".", "--junit", "/dev/full", *ASKED)

    assert (done.code, without_seconds(done.out).splitlines()[0]) == (2, "1 passed: 1 file, embedded")
    assert done.err == (
        "error: /dev/full: cannot be written: No space left on device\n    hint: choose a folder you can write to\n"
    )


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("wire", ["a wire", "Wire limit"]),
        ("^WIRE", ["Wire limit"]),
        ("a wire|note", ["a wire", "note"]),
        ("^(?!.*wire)", ["note"]),
        ("it-is-none", []),
    ],
)
def test_regular_expression_selects_scenarios(expression: str, selected: list[str]) -> None:
    test = selection(expression)

    assert [name for name in ("a wire", "Wire limit", "note") if test(name)] == selected


def test_malformed_regular_expression_is_rejected() -> None:
    with pytest.raises(UsageError) as raised:
        selection("(a")

    reason = "missing ), unterminated subpattern at position 0 (write a regular expression: 'wire|refund')"
    assert str(raised.value) == f"-k: '(a' is malformed: {reason}"


def test_test_command_runs_only_selected_scenarios() -> None:
    project(Path(), ALLOW, WRONG)

    done = pdp("test", ".", "-k", "^allow", *ASKED)

    assert (done.code, without_seconds(done.out).splitlines()[0]) == (0, "1 passed: 1 file, embedded")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-k", "nothing"), "-k 'nothing': matches none of 1 scenarios\n    hint: use part of a scenario name"),
        (("--fail-under", "90"), "--fail-under has no effect without --coverage\n    hint: add --coverage"),
    ],
)
def test_test_command_rejects_invalid_options(options: tuple[str, ...], message: str) -> None:
    project(Path(), ALLOW)

    done = pdp("test", ".", *options, *ASKED)

    assert done == (2, "", f"error: {message}\n")


def test_custom_policies_need_opa_and_custom_data_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios with custom data run without OPA. For custom policies, `pdp test` needs OPA and says so."""
    _own_policy("mine", "package custom.concerns.probe\n\nallow contains 1 if false\n")
    Path("d.json").write_text('{"settings": {"x": 1}}')
    _no_opa(monkeypatch)
    project(Path(), ALLOW, policies=["mine"])
    with_policies = pdp("test", ".", *ASKED)
    project(Path(), ALLOW, data=["d.json"])
    with_data = pdp("test", ".", *ASKED)

    assert (with_policies.code, with_policies.err) == (
        2,
        (
            "error: compiling policies needs Open Policy Agent 1.22.4, which is not installed\n"
            "    hint: run: pdp opa install\n"
        ),
    )
    assert with_data.code == 0


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_both_engines_run_if_opa_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    project(Path(), ALLOW)
    both = pdp("test", ".")
    _no_opa(monkeypatch)
    alone = pdp("test", ".")

    assert [(done.code, without_seconds(done.out).splitlines()[0]) for done in (both, alone)] == [
        (0, "2 passed: 1 file, embedded, sidecar"), (0, "1 passed: 1 file, embedded"),
    ]  # fmt: skip


@pytest.mark.opa
def test_compiled_policies_are_cached_until_the_sources_change(
    opa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run reuses the compiled policies, unless the sources changed or the cached file is damaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = PROBE
    _own_policy("mine", text)
    project(Path(), one(propose=READ, expect={"verdict": "DENY", "codes": ["probe.a"]}), policies=["mine"])
    first = pdp("test", ".", *ASKED)
    kept = list(Path("cache").rglob("*.tar.gz"))
    with monkeypatch.context() as patch:
        _no_opa(patch)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        second = pdp("test", ".", *ASKED)
    kept[0].write_bytes(b"damaged")
    third = pdp("test", ".", *ASKED)
    _own_policy("mine", text.replace("probe.a", "probe.b"))
    fourth = pdp("test", ".", *ASKED)

    assert [each.code for each in (first, second, third, fourth)] == [0, 0, 0, 1]
    assert read_bundle(kept[0]).modules["custom/concerns/probe/probe.rego"] == text
    assert len(list(Path("cache").rglob("*.tar.gz"))) == 2


@pytest.mark.parametrize(("sub", "wrong"), [(5, "not text"), (None, "missing")])
def test_failed_scenario_explains_a_denial_by_the_enforcement_point(sub: object, wrong: str) -> None:
    project(Path(), one(propose=READ, session={"claims": {"sub": sub}}, expect={"verdict": "ALLOW"}))

    done = pdp("test", ".", *ASKED)

    stopped = f"decision.request_invalid: session: claims.sub is {wrong}, but a decision needs a subject"
    assert (done.code, done.out.splitlines()[-3:-1]) == (1, [f"  stopped by the enforcement point: {stopped}", ""])


def test_failed_scenario_says_that_unfired_rules_are_unknown_without_opa(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_opa(monkeypatch)
    project(Path(), one(propose=READ, expect={"codes": ["scopes.missing"]}))

    done = pdp("test", ".", *ASKED)
    diagnosis = pdp("test", ".", "--json", *ASKED).json["suites"][0]["scenarios"][0]["diagnosis"]

    assert done.code == 1
    assert done.out.splitlines()[-3:-1] == [
        "  rules that did not fire: not known without OPA 1.22.4; get it with: pdp opa install", "",
    ]  # fmt: skip
    assert diagnosis["unknown"] == " without OPA 1.22.4; get it with: pdp opa install"


def _own_policy(folder: str, text: str) -> None:
    file = Path(folder, "custom/concerns/probe/probe.rego")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _no_opa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDP_OPA", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    # OPA may also be installed in the cache folder, so hide that folder.
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("nowhere").absolute()))


def test_watch_runs_again_after_a_change_and_goes_on_after_a_fault(tmp_path: Path) -> None:
    file, runs = tmp_path / "suite.yaml", iter(("a", "broken", "end"))

    def run() -> None:
        done.append(next(runs))
        os.utime(file, (len(done), len(done)))
        if done[-1] == "end":
            raise KeyboardInterrupt
        if done[-1] == "broken":
            raise UsageError("faulty file")

    done: list[str] = []
    file.touch()
    with pytest.raises(KeyboardInterrupt):
        run_after_changes({file}, run)
    assert done == ["a", "broken", "end"]
