"""pytest finds the plugin by the plugin's entry point, and runs scenarios as tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdp.cli.commands.init import project_files
from pdp.engine.bundle.file import baseline_bundle_path, pack_bundle, read_bundle
from tests.support import payments
from tests.support.command_line import pdp

pytest_plugins = "pytester"
pytestmark = [pytest.mark.opa, pytest.mark.process]

NAMES = [
    "a clerk finds tickets",
    "a search without the scope is denied",
    "a customer is answered",
    "a stranger is not answered",
    "a small refund is paid at once",
    "a large refund needs approval",
    "a large refund is paid once the desk's lead has approved it",
    "the requester cannot approve a refund",
    "a tool missing in the manifest is rejected",
    "an amount given as text is rejected",
]

TESTS = """
import json, urllib.request

SESSION = {"claims": {"sub": "clerk-7", "emts": {"desk.reply": True, "desk.refund": True}}}


def reply(recipient):
    return {"tool": "reply_to_customer", "arguments": {"ticket_id": "T-1", "recipient": recipient, "text": "hi"}}


def test_decide(decide):
    assert decide(reply("ada@customer.example"), SESSION).verdict == "ALLOW"
    assert decide(reply("eve@stranger.example"), SESSION).codes == ("replies.recipient_not_allowed",)


def test_a_point_of_its_own(pep):
    ran = pep.with_changes(tools={"reply_to_customer": lambda **_: "sent"})
    assert ran.call(reply("ada@customer.example"), SESSION).result == "sent"
    assert len(ran.audit.events) == 2


def test_another_point_of_its_own(pep):
    assert pep.audit.events == []


def test_a_server(opa_server, pep):
    evaluation = pep.decide(reply("eve@stranger.example"), SESSION)
    asked = urllib.request.Request(
        f"{opa_server.url}/v1/data/authz/decision",
        json.dumps({"input": evaluation.request}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {opa_server.token}"},
    )
    with urllib.request.urlopen(asked, timeout=600) as answer:
        result = json.load(answer)["result"]
    assert [reason["code"] for reason in result["reasons"]] == ["replies.recipient_not_allowed"]
    assert opa_server.token not in repr(opa_server)
"""

SETTINGS = """
[pytest]
pdp_project = pdp.yaml
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for compiled bundles that all pytest runs share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, opa: Path, cache: Path) -> pytest.Pytester:
    """Create a project with `pdp init` in the folder `desk`."""
    monkeypatch.setenv("PDP_OPA", str(opa))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for name, content in project_files().items():
        file = pytester.path / "desk" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    # The tests need only one scenario file, so remove the other scenario file.
    (pytester.path / "desk/edges.scenarios.yaml").unlink()
    pytester.makeini("[pytest]\npdp_scenarios = true\n")
    return pytester


def changed(project: pytest.Pytester, old: str, new: str, name: str = "scenarios.yaml") -> None:
    file = project.path / "desk" / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def pytest_run(project: pytest.Pytester, *arguments: str, process: bool = False) -> pytest.RunResult:
    # Treat warnings as errors. Switch off the plugin asyncio, which itself causes warnings, and colours in the output.
    run = project.runpytest_subprocess if process else project.runpytest_inprocess
    result = run("-W", "error", "-p", "no:asyncio", "--color=no", *arguments)
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str()
    return result


def passed(result: pytest.RunResult) -> list[str]:
    """Return the names of the tests that the verbose output reports as passed."""
    return [line.partition(" PASSED ")[0].strip() for line in result.outlines if " PASSED " in line]


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line]


def one_scenario(name: str = "the only one") -> str:
    return json.dumps(
        {
            "manifest": "manifest.yaml",
            "session": {"claims": {"sub": "clerk-7"}},
            "scenarios": [{"name": name, "propose": {"tool": "gone"}, "expect": {"rejection": "INVALID_TOOL_NAME"}}],
        }
    )


def test_plugin_collects_scenarios_with_their_names(project: pytest.Pytester) -> None:
    for name in ("other.scenarios.yaml", "third.scenarios.json", "no_scenarios.yaml", "scenarios.txt"):
        text = '{"manifest": "manifest.yaml", "scenarios": []}' if name.startswith("no") else one_scenario()
        (project.path / "desk" / name).write_text(text)
    (project.path / "desk/red.scenarios.yaml").write_text(one_scenario("red \x1b[31m\nline"))

    result = pytest_run(project, "--collect-only", "-q")

    assert collected(result) == [
        "desk/other.scenarios.yaml::the only one",
        "desk/red.scenarios.yaml::red \\x1b(31m\\nline",
        *(f"desk/scenarios.yaml::{name}" for name in NAMES),
        "desk/third.scenarios.json::the only one",
    ]


def test_pytest_plugin_is_inactive_if_no_setting_enables_it(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\n")
    heavy = {"pydantic", "wasmtime", "orjson", "jinja2", "typer", "docker"}
    project.makeconftest(
        "import sys\n\ndef pytest_unconfigure():\n"
        "    print('loaded', sorted(name for name in sys.modules if name.startswith('pdp')))\n"
        f"    print('heavy', sorted({heavy} & sys.modules.keys()))\n"
    )

    result = pytest_run(project, "--collect-only", "-q", process=True)

    assert collected(result) == []
    packages = ["pdp", "pdp.workbench", "pdp.workbench.scenarios", "pdp.workbench.scenarios.pytest_plugin"]
    assert f"loaded {packages}" in result.stdout.str()
    assert "heavy []" in result.stdout.str()


def test_plugin_runs_scenarios_with_xdist_on_both_engines(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\n")

    result = pytest_run(project, "--pdp-engine", "both", "-n", "2", "-v", process=True)

    result.assert_outcomes(passed=len(NAMES))
    names = [line.partition("scenarios.yaml::")[2].strip() for line in result.outlines if " PASSED " in line]
    assert sorted(names) == sorted(NAMES)


def test_pytest_plugin_shows_a_failed_scenario_like_the_command_pdp_test(project: pytest.Pytester) -> None:
    changed(project, "codes: [replies.recipient_not_allowed]", "codes: [scopes.missing]")

    result = pytest_run(project)
    done = pdp("test", "desk", "--engine", "embedded")

    result.assert_outcomes(passed=9, failed=1)
    report = done.out[: done.out.rindex("\n\n")]
    assert report.startswith("FAILED a stranger is not answered [embedded]\n  desk/scenarios.yaml:")
    assert report in result.stdout.str()


SPECIAL_NAMES = {"a [x]": "a (x)", "b::c": "b:c", "::d:::e]": ":d:e)", "plain": "plain"}


def special(project: pytest.Pytester, **expected: Any) -> None:
    """Write scenarios whose names contain special characters of pytest ids. All except `plain` expect `expected`."""
    scenarios = [
        {"name": name, "propose": {"tool": "gone"},
         "expect": {"rejection": "INVALID_TOOL_NAME", **({} if name == "plain" else expected)}}
        for name in SPECIAL_NAMES
    ]  # fmt: skip
    document = {"manifest": "manifest.yaml", "session": {"claims": {"sub": "clerk-7"}}, "scenarios": scenarios}
    (project.path / "desk/scenarios.yaml").write_text(json.dumps(document))


def test_scenario_names_with_pytest_id_characters_can_be_selected(project: pytest.Pytester) -> None:
    special(project, status="accepted")
    result = pytest_run(project)
    result.assert_outcomes(passed=1, failed=3)
    titles = [line.strip("_ ") for line in result.outlines if line.startswith("___")]
    assert titles == [name for name in SPECIAL_NAMES if name != "plain"]

    special(project, status="rejected")
    result = pytest_run(project, "--lf", "-v")

    result.assert_outcomes(passed=3)
    ids = [f"desk/scenarios.yaml::{name}" for name in SPECIAL_NAMES.values()]
    assert passed(result) == ids[:-1]
    assert passed(pytest_run(project, "-v", *ids)) == ids
    assert passed(pytest_run(project, "-v", "-k", "[x]")) == ids[:1]


def test_faulty_scenario_file_is_a_collection_error(project: pytest.Pytester) -> None:
    changed(project, "expect: {refused: requester}", "expect: {refusd: requester}")
    lines = (project.path / "desk/scenarios.yaml").read_text().splitlines()

    result = pytest_run(project)

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting desk/scenarios.yaml*",
            f"desk/scenarios.yaml:{lines.index('        expect: {refusd: requester}') + 1}:18: unknown key `refusd`",
            "            expect: {refusd: requester}",
            "                     ^",
            "    hint: did you mean `refused`?",
            "ERROR desk/scenarios.yaml*",
        ]
    )


def test_plugin_reports_uncompilable_policies_without_traceback(project: pytest.Pytester) -> None:
    changed(project, "split(recipient,", "splt(recipient,", "policies/custom/concerns/replies/replies.rego")

    result = pytest_run(project, "-k", "stranger")

    result.assert_outcomes(errors=1, deselected=9)
    result.stdout.fnmatch_lines(["desk/policies/custom/concerns/replies/replies.rego:*: unknown function splt"])


def test_scenario_fails_if_the_engines_disagree(project: pytest.Pytester) -> None:
    """The Rego in the bundle is not the Rego from which the WebAssembly was built, so the two engines disagree."""
    bundle = read_bundle(baseline_bundle_path())
    scopes = "authz/concerns/scopes/scopes.rego"
    other = bundle.modules[scopes].replace("# description: ", "# description: In other words. ")
    packed = pack_bundle(release=1, wasm=bundle.wasm, data=bundle.data, modules={**bundle.modules, scopes: other})
    (project.path / "desk/bundle.tar.gz").write_bytes(packed)
    changed(project, "policies: [policies]", "bundle: bundle.tar.gz")

    result = pytest_run(project, "--pdp-engine", "both", "-k", "without and scope")

    result.assert_outcomes(failed=1, deselected=9)
    result.stdout.fnmatch_lines(["FAILED a search without the scope is denied [[]sidecar]", "*decision,*"])
    result.stdout.no_fnmatch_line("FAILED a search without the scope is denied [[]embedded]")
    result.stdout.no_fnmatch_line("  verdict *")


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [(["--no-pdp-scenarios"], ""), (["-p", "no:pdp"], ""), ([], "[pytest]\npdp_scenarios = false")],
)
def test_pytest_plugin_can_be_switched_off(project: pytest.Pytester, arguments: list[str], settings: str) -> None:
    project.makeini(settings)

    assert pytest_run(project, *arguments).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def fixtures(project: pytest.Pytester, settings: str = SETTINGS) -> None:
    (project.path / "desk/pytest.ini").write_text(settings)
    (project.path / "desk/test_desk.py").write_text(TESTS)


def test_tests_that_use_the_plugin_fixture_run_on_both_engines(project: pytest.Pytester) -> None:
    fixtures(project, SETTINGS + "pdp_engine = both\n")

    result = pytest_run(project, "desk/test_desk.py", "-c", "desk/pytest.ini", "-v")

    tests = ("test_a_point_of_its_own", "test_a_server", "test_another_point_of_its_own", "test_decide")
    assert sorted(name.rpartition("::")[2] for name in passed(result)) == [
        f"{name}[{engine}]" for name in tests for engine in ("embedded", "sidecar")
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "[pytest]\npdp_engine = embedded\n",
            "the fixtures pep, decide and opa_server need a project: *",
        ),
        ("[pytest]\npdp_project = gone.yaml\n", "*gone.yaml: no such file"),
        ("[pytest]\npdp_project = pytest.ini\n", "*pytest.ini:2:1: not YAML: *"),
    ],
)
def test_plugin_rejects_unusable_settings(project: pytest.Pytester, settings: str, message: str) -> None:
    fixtures(project, settings)

    result = pytest_run(project, "desk/test_desk.py", "-c", "desk/pytest.ini", "-k", "decide")

    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines([message])


_SECONDS = "is not a number of seconds"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("pdp_engine = fast", "pdp_engine: unknown engine 'fast'; use one of embedded, sidecar, both"),
        ("pdp_scenarios = true\npdp_engine_timeout = soon", f"pdp_engine_timeout: 'soon' {_SECONDS}"),
        (
            "pdp_scenarios = true\npdp_engine_timeout = 0",
            f"pdp_engine_timeout: 0.0 {_SECONDS}; give a number above 0, at most 3600",
        ),
    ],
)
def test_plugin_rejects_an_invalid_engine_or_timeout(project: pytest.Pytester, setting: str, complaint: str) -> None:
    project.makeini(f"[pytest]\n{setting}\n")

    result = pytest_run(project)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {complaint}"])


def test_engine_timeout_fails_the_scenario_without_a_verdict(project: pytest.Pytester) -> None:
    """The timeout is a billionth of a second, so no engine answers in time."""
    result = pytest_run(project, "--pdp-engine", "sidecar", "--pdp-engine-timeout", "0.000000001", "-k", "without")

    result.assert_outcomes(failed=1, deselected=len(NAMES) - 1)
    assert "a search without the scope is denied: no verdict: " in result.stdout.str()
    assert "hint: give the engine more time with --engine-timeout, or look for a rule" in result.stdout.str()


def test_plugin_fails_with_a_hint_if_opa_is_missing(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PDP_OPA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (project.path / "bundled.yaml").write_text(f"manifest: desk/manifest.yaml\nbundle: {payments.BUNDLE}\n")
    project.makeini("[pytest]\npdp_project = bundled.yaml\n")
    (project.path / "test_server.py").write_text("def test_it(opa_server): pass\n")

    result = pytest_run(project, "test_server.py")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*opa_server needs Open Policy Agent*", "*hint: run: pdp opa install*"])
