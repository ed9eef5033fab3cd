"""Scenario files are loaded, and every fault in a scenario file is reported with the location of the fault."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.errors import FileFaultsError, UsageError
from pdp.workbench.scenarios.files.suite import find_suites, load_suite, load_suites, policy_modules
from tests.support import ROOT
from tests.support.scenario_files import BOB, MANIFEST, READ, SESSION, loaded, one, project

RAW = "scenarios: [{name: a, request: 1, expect: {verdict: DENY}}]"
HEAD = """\
manifest: manifest.json
session: {claims: {sub: ann}}
scenarios:
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary folder, so that file names in messages are relative."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    return tmp_path


def faults(text: str) -> list[str]:
    """Return the faults in a scenario file, each as `FILE:LINE:COLUMN: message (hint)`."""
    Path("scenarios.yaml").write_text(text)
    with pytest.raises(FileFaultsError) as raised:
        load_suite(Path("scenarios.yaml"))
    return [
        f"{fault.place}: {fault.message}" + (f" ({fault.hint})" if fault.hint else "") for fault in raised.value.faults
    ]


def test_scenario_may_have_one_step_or_several_steps() -> None:
    suite = loaded(
        Path(),
        one(propose=READ, expect={"verdict": "ALLOW"}, why="it is so"),
        one(name="two", golden=True, steps=[{"propose": READ, "expect": {"verdict": "ALLOW"}}] * 2),
    )

    assert [(each.name, each.why, each.golden) for each in suite.scenarios] == [
        ("it", "it is so", False), ("two", None, True),
    ]  # fmt: skip
    assert [[step.action for step in each.steps] for each in suite.scenarios] == [["propose"], ["propose"] * 2]
    assert (suite.manifest.version, suite.policies, suite.bundle, suite.data, suite.tools) == ("7", (), None, {}, None)


def test_scenarios_and_steps_have_locations() -> None:
    Path("s.yaml").write_text(
        HEAD + "  - name: a\n    propose: {tool: read_note}\n    expect: {verdict: DENY}\n"
        "  - name: b\n    steps:\n      - propose: {tool: read_note}\n        expect: {verdict: DENY}\n"
        "      - propose: {tool: read_note}\n        expect: {verdict: DENY}\n"
    )

    suite = load_suite(Path("s.yaml"))

    assert [str(suite.place(0)), str(suite.place(0, 0)), str(suite.place(1)), str(suite.place(1, 1))] == [
        "s.yaml:4:5", "s.yaml:4:5", "s.yaml:7:5", "s.yaml:11:9",
    ]  # fmt: skip


def test_session_values_of_suite_scenario_and_step_are_merged_key_by_key() -> None:
    suite = loaded(
        Path(),
        one(
            session={"claims": {"limits": {"wires": None, "notes": 3}}, "purpose": None, "facts": {"a": [1]}},
            steps=[
                {"propose": READ, "expect": {"verdict": "ALLOW"}, "session": {"facts": {"a": [2], "b": {"c": None}}}},
                {"approve": BOB, "at": "2026-02-02T00:00:00Z", "expect": {"approval": "granted"}},
                {"request": {}, "expect": {"verdict": "DENY"}},
                {"propose": READ, "expect": {"verdict": "ALLOW"}, "session": {"run_id": "mine"}},
                {"propose": READ, "expect": {"verdict": "ALLOW"}, "session": {"time": "2026-03-03T00:00:00Z"}},
            ],
        ),
        session={**SESSION, "facts": {"a": [0, 0]}},
    )

    first, approver, none, fourth, fifth = suite.sessions[0]

    assert first is not None
    assert first.model_dump() == {
        "claims": {"sub": "ann", "emts": {"notes.read": True, "wires.send": True}, "limits": {"notes": 3}},
        "purpose": None, "facts": {"a": [2], "b": {}}, "idempotency_key": None, "run_id": "it", "request_id": "it/1",
        "agent": None, "prompt": [], "home_domains": [], "plan": [], "state": {}, "config": {},
        "time": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    assert approver is not None
    assert (approver.claims, approver.time) == (BOB["claims"], "2026-02-02T00:00:00Z")
    assert none is None
    assert fourth is not None
    assert (fourth.run_id, fourth.time, fourth.facts) == ("mine", "2026-02-02T00:00:00Z", {"a": [1]})
    assert fifth is not None
    assert fifth.time == "2026-03-03T00:00:00Z"


def test_scenario_file_takes_missing_settings_from_the_file_that_it_extends() -> None:
    Path("shared/data").mkdir(parents=True)
    Path("shared/manifest.json").write_text(json.dumps(MANIFEST))
    Path("shared/data/d.json").write_text('{"settings": {"x": 1}}')
    Path("shared/base.yaml").write_text("manifest: manifest.json\nsession: {claims: {sub: ann, roles: [a]}}\n")
    Path("shared/more.yaml").write_text(
        "extends: base.yaml\ndata: [data/d.json]\nsession: {claims: {roles: [b]}, purpose: x}\n"
        "scenarios: [{name: other, request: 1, expect: {verdict: DENY}}]\n"
    )
    file = Path("s.yaml")
    file.write_text(
        "extends: shared/more.yaml\nsession: {purpose: y}\nscenarios:\n"
        "  - {name: it, propose: {tool: read_note}, expect: {verdict: DENY}}\n"
    )

    suite = load_suite(file)

    assert [each.name for each in suite.scenarios] == ["it"]
    assert (suite.data, suite.manifest.version) == ({"settings": {"x": 1}}, "7")
    [[session]] = suite.sessions
    assert session is not None
    assert (session.claims, session.purpose) == ({"sub": "ann", "roles": ["b"]}, "y")


def test_setting_policies_replaces_the_bundle_of_an_extended_file_and_vice_versa() -> None:
    Path("mine").mkdir()
    Path("b.tar.gz").write_bytes(b"")
    Path("base.json").write_text(json.dumps({"manifest": "manifest.json", "bundle": "b.tar.gz"}))

    stated = project(Path(), one(request=1, expect={"verdict": "DENY"}), extends="base.json", policies=["mine"])
    taken = project(Path(), one(request=1, expect={"verdict": "DENY"}), extends="base.json", name="t.json")

    assert [(each.policies, each.bundle) for each in map(load_suite, (stated, taken))] == [
        ((Path("mine"),), None), ((), Path("b.tar.gz")),
    ]  # fmt: skip


def test_each_fault_in_several_scenario_files_is_reported_once() -> None:
    step = "propose: {tool: read_note}, expect: {verdict: DENY}"
    Path("base.yaml").write_text("manifest: manifest.json\nsesion: {}\n")
    for name, scenario in (("a", f"name: a, {step}"), ("b", f"name: b, {step}, whi: x"), ("good", f"name: c, {step}")):
        base = "extends: base.yaml\n" if name != "good" else "manifest: manifest.json\n"
        Path(f"{name}.yaml").write_text(f"{base}session: {{claims: {{sub: ann}}}}\nscenarios:\n  - {{{scenario}}}\n")

    with pytest.raises(FileFaultsError) as raised:
        load_suites([Path("a.yaml"), Path("good.yaml"), Path("b.yaml")])

    assert [f"{fault.place}: {fault.message}" for fault in raised.value.faults] == [
        "b.yaml:4:68: unknown key `whi`",
        "base.yaml:2:1: unknown key `sesion`",
    ]
    assert [suite.file for suite in load_suites([Path("good.yaml")])] == [Path("good.yaml")]
    assert load_suites([]) == []


@pytest.mark.parametrize("case", yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text()))
def test_all_faults_of_a_scenario_file_are_reported(case: dict[str, Any]) -> None:
    Path("tools.py").write_text("def f(:\n")
    Path("d.json").write_text('{"manifests": {}}')
    Path("faulty.json").write_text(json.dumps({**MANIFEST, "manifest_version": 7}))

    assert [fault.removeprefix("scenarios.yaml:") for fault in faults(case["file"] + "\n")] == case["faults"]


def test_scenario_may_propose_an_unknown_tool_if_it_expects_the_rejection() -> None:
    suite = loaded(
        Path(),
        one(name="a", propose={"tool": "shell"}, expect={"rejection": "INVALID_TOOL_NAME"}),
        one(name="b", propose={"tool_name": "shell"}, expect={"trace": {"in_manifest": False}}),
        one(name="c", propose="no object", expect={"rejection": "INVALID_PAYLOAD"}),
    )

    assert len(suite.scenarios) == 3


CIRCLE = "`extends` forms a cycle"


@pytest.mark.parametrize(
    ("extends", "expected"),
    [
        (
            "b.yaml",
            [f"c.yaml:1:10: {CIRCLE}: scenarios.yaml -> b.yaml -> c.yaml -> scenarios.yaml (remove one of them)"],
        ),
        (
            "./scenarios.yaml",
            [f"scenarios.yaml:1:10: {CIRCLE}: scenarios.yaml -> scenarios.yaml (remove one of them)"],
        ),
        ("gone.yaml", ["scenarios.yaml:1:10: gone.yaml: no such file (check the path)"]),
        ("list.yaml", ["list.yaml:1:1: a scenario file must be a mapping (check that it is the right file)"]),
        (
            "more.yaml",
            [
                (
                    "more.yaml:1:1: unknown key `nope` "
                    "(known keys: bundle, data, extends, governance, manifest, policies, scenarios, session, tools)"
                )
            ],
        ),
        (
            "faulty.yaml",
            [
                "faulty.yaml:1:1: unknown key `tols` (did you mean `tools`?)",
                "faulty.yaml:2:19: `claims` must be a mapping, not `1`",
            ],
        ),
    ],
)
def test_fault_in_an_extended_scenario_file_is_reported_in_that_file(extends: str, expected: list[str]) -> None:
    for name, text in (("b", "extends: c.yaml"), ("c", "extends: scenarios.yaml"), ("list", "[1]"),
                       ("more", "nope: 1"), ("faulty", "tols: 1\nsession: {claims: 1}")):  # fmt: skip
        Path(f"{name}.yaml").write_text(f"{text}\n")

    assert faults(f"extends: {extends}\n{RAW}\n") == expected


def test_scenario_files_are_found_in_folders() -> None:
    names = ("a/scenarios.yaml", "a/b/x.scenarios.yml", "a/c/scenarios.json", "a/base.yaml", "a/.hidden/scenarios.yaml",
             "other.yaml", "a/myscenarios.yaml")  # fmt: skip
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")

    found = find_suites([Path("other.yaml"), Path("a"), Path("a/b/../scenarios.yaml")])

    assert [str(path) for path in found] == [
        "other.yaml", "a/b/x.scenarios.yml", "a/c/scenarios.json", "a/scenarios.yaml",
    ]  # fmt: skip


def test_missing_scenario_files_are_errors() -> None:
    Path("empty").mkdir()

    with pytest.raises(UsageError, match=r"^nowhere: no such file or folder \(check the path\)$"):
        find_suites([Path("nowhere")])
    with pytest.raises(UsageError, match=r"^empty: no scenario file in this folder"):
        find_suites([Path("empty")])


def test_policy_modules_of_a_suite_are_read_from_its_policies_folder_or_its_bundle() -> None:
    folder = Path("mine/custom/concerns/probe")
    folder.mkdir(parents=True)
    (folder / "probe.rego").write_text("package custom.concerns.probe\n")
    root = ROOT
    own = loaded(Path(), one(request=1, expect={"verdict": "DENY"}), policies=["mine"])
    packed: Any = str(root / "bundles/payments.tar.gz")
    of_bundle = policy_modules(loaded(Path(), one(request=1, expect={"verdict": "DENY"}), bundle=packed))

    modules = policy_modules(own)
    assert {path: str(module.file) for path, module in modules.items() if module.custom} == {
        "custom/concerns/probe/probe.rego": "mine/custom/concerns/probe/probe.rego"
    }
    assert modules["authz/decision.rego"].file == root / "policies/authz/decision.rego"
    assert str(of_bundle["authz/decision.rego"].file) == f"{packed}!authz/decision.rego"
    assert [path for path, module in of_bundle.items() if module.custom] == [
        path for path in of_bundle if path.startswith("custom/")
    ]
