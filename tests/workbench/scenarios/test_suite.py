"""Scenario files: what is loaded, and every fault with its place."""

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
    """Files are named as from their own folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    return tmp_path


def faults(text: str) -> list[str]:
    """The faults of a file, each as `FILE:LINE:COLUMN: message (hint)`."""
    Path("scenarios.yaml").write_text(text)
    with pytest.raises(FileFaultsError) as raised:
        load_suite(Path("scenarios.yaml"))
    return [
        f"{fault.place}: {fault.message}" + (f" ({fault.hint})" if fault.hint else "") for fault in raised.value.faults
    ]


def test_a_scenario_of_one_step_and_one_of_several() -> None:
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


def test_places_are_those_of_scenario_and_step() -> None:
    Path("s.yaml").write_text(
        HEAD + "  - name: a\n    propose: {tool: read_note}\n    expect: {verdict: DENY}\n"
        "  - name: b\n    steps:\n      - propose: {tool: read_note}\n        expect: {verdict: DENY}\n"
        "      - propose: {tool: read_note}\n        expect: {verdict: DENY}\n"
    )

    suite = load_suite(Path("s.yaml"))

    assert [str(suite.place(0)), str(suite.place(0, 0)), str(suite.place(1)), str(suite.place(1, 1))] == [
        "s.yaml:4:5", "s.yaml:4:5", "s.yaml:7:5", "s.yaml:11:9",
    ]  # fmt: skip


def test_sessions_are_laid_over_each_other_deep() -> None:
    """Null takes a value away; lists replace; request and run are named, time is fixed and stays where it was set."""
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


def test_extends_takes_what_the_file_does_not_state() -> None:
    """Paths are relative to the file that states them, sessions are laid over each other, scenarios are one's own."""
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


def test_policies_and_bundle_take_the_place_of_each_other() -> None:
    Path("mine").mkdir()
    Path("b.tar.gz").write_bytes(b"")
    Path("base.json").write_text(json.dumps({"manifest": "manifest.json", "bundle": "b.tar.gz"}))

    stated = project(Path(), one(request=1, expect={"verdict": "DENY"}), extends="base.json", policies=["mine"])
    taken = project(Path(), one(request=1, expect={"verdict": "DENY"}), extends="base.json", name="t.json")

    assert [(each.policies, each.bundle) for each in map(load_suite, (stated, taken))] == [
        ((Path("mine"),), None), ((), Path("b.tar.gz")),
    ]  # fmt: skip


def test_several_files_show_the_faults_of_all_of_them_at_once_and_each_once() -> None:
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
def test_every_fault_of_a_file_at_once(case: dict[str, Any]) -> None:
    Path("tools.py").write_text("def f(:\n")
    Path("d.json").write_text('{"manifests": {}}')
    Path("faulty.json").write_text(json.dumps({**MANIFEST, "manifest_version": 7}))

    assert [fault.removeprefix("scenarios.yaml:") for fault in faults(case["file"] + "\n")] == case["faults"]


def test_a_tool_that_the_manifest_does_not_have_may_be_the_point() -> None:
    suite = loaded(
        Path(),
        one(name="a", propose={"tool": "shell"}, expect={"rejection": "INVALID_TOOL_NAME"}),
        one(name="b", propose={"tool_name": "shell"}, expect={"trace": {"in_manifest": False}}),
        one(name="c", propose="no object", expect={"rejection": "INVALID_PAYLOAD"}),
    )

    assert len(suite.scenarios) == 3


CIRCLE = "`extends` goes in a circle"


@pytest.mark.parametrize(
    ("extends", "expected"),
    [
        (
            "b.yaml",
            [f"c.yaml:1:10: {CIRCLE}: scenarios.yaml -> b.yaml -> c.yaml -> scenarios.yaml (take one of them out)"],
        ),
        (
            "./scenarios.yaml",
            [f"scenarios.yaml:1:10: {CIRCLE}: scenarios.yaml -> scenarios.yaml (take one of them out)"],
        ),
        ("gone.yaml", ["scenarios.yaml:1:10: gone.yaml: no such file (check the path)"]),
        ("list.yaml", ["list.yaml:1:1: a scenario file must be a mapping (check that it is the right file)"]),
        (
            "more.yaml",
            [
                (
                    "more.yaml:1:1: unknown key `nope` "
                    "(known here: bundle, data, extends, governance, manifest, policies, scenarios, session, tools)"
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
def test_a_file_that_is_extended_has_its_own_faults(extends: str, expected: list[str]) -> None:
    """What no file states may stand where nobody could look: that no manifest is named is not said as well."""
    for name, text in (("b", "extends: c.yaml"), ("c", "extends: scenarios.yaml"), ("list", "[1]"),
                       ("more", "nope: 1"), ("faulty", "tols: 1\nsession: {claims: 1}")):  # fmt: skip
        Path(f"{name}.yaml").write_text(f"{text}\n")

    assert faults(f"extends: {extends}\n{RAW}\n") == expected


def test_suites_are_found_in_folders_and_taken_as_named() -> None:
    names = ("a/scenarios.yaml", "a/b/x.scenarios.yml", "a/c/scenarios.json", "a/base.yaml", "a/.hidden/scenarios.yaml",
             "other.yaml", "a/myscenarios.yaml")  # fmt: skip
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")

    found = find_suites([Path("other.yaml"), Path("a"), Path("a/b/../scenarios.yaml")])

    assert [str(path) for path in found] == [
        "other.yaml", "a/b/x.scenarios.yml", "a/c/scenarios.json", "a/scenarios.yaml",
    ]  # fmt: skip


def test_nothing_is_found() -> None:
    Path("empty").mkdir()

    with pytest.raises(UsageError, match=r"^nowhere: no such file or folder \(check the path\)$"):
        find_suites([Path("nowhere")])
    with pytest.raises(UsageError, match=r"^empty: no scenario file in it"):
        find_suites([Path("empty")])


def test_the_modules_that_decide() -> None:
    """The baseline's with the suite's own, or those of the bundle."""
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
