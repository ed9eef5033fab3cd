"""Scenario files: what is loaded, and every fault with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdp.errors import FileFaultsError, UsageError
from pdp.workbench.scenarios.files.suite import find_suites, load_suite, load_suites, policy_modules
from tests.support import ROOT
from tests.support.scenario_files import BOB, MANIFEST, READ, SESSION, loaded, one, project

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


def faults(text: str | bytes, name: str = "scenarios.yaml") -> list[str]:
    """The faults of a file, each as `FILE:LINE:COLUMN: message (hint)`."""
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(FileFaultsError) as raised:
        load_suite(Path(name))
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
        "agent": None, "plan": [], "state": {}, "config": {}, "time": "2026-01-01T00:00:00Z",
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
    assert suite.model.session == {"claims": {"sub": "ann", "roles": ["b"]}, "purpose": "y"}
    assert (suite.model.extends, suite.model.manifest) == ("shared/more.yaml", "manifest.json")


def test_policies_and_bundle_take_the_place_of_each_other() -> None:
    Path("mine").mkdir()
    Path("b.tar.gz").write_bytes(b"")
    Path("base.json").write_text(json.dumps({"manifest": "manifest.json", "bundle": "b.tar.gz"}))

    stated = project(Path(), one(request=1, expect={"verdict": "DENY"}), extends="base.json", policies=["mine"])
    taken = project(Path(), one(request=1, expect={"verdict": "DENY"}), extends="base.json", name="t.json")

    assert [(each.policies, each.bundle) for each in map(load_suite, (stated, taken))] == [
        ((Path("mine"),), None), ((), Path("b.tar.gz")),
    ]  # fmt: skip


def test_every_fault_of_a_file_at_once() -> None:
    Path("tools.py").write_text("def f(:\n")
    text = """\
manifest: manifest.json
sesion: {}
data: [nothere.json]
policies: [nowhere]
tools: tools.py
session:
  claims: {sub: u}
  fcts: {a: 1}
  time: yesterday
scenarios:
  - name: wrong words
    propose: {tool: read_note}
    expect: {verdict: ALLOWED, executed: "yes", obligations: [{id: a}, 5], trace: {in_manifst: true}}
  - name: misspelt
    propse: {tool: read_note}
    expct: {verdct: DENY}
  - name: unknown
    propose: {tool: read_notes}
    expect: {verdict: ALLOW}
  - name: misspelt
    propose: {tool: read_note}
    plan: []
    expect: {}
  - name: both
    propose: {}
    steps:
      - {propose: {}, at: 2026, expect: [{verdict: DENY}]}
      - 5
      - {plan: [{}, {}], expect: {verdict: DENY}, returns: 3}
      - {approve: {claims: 3}, expect: {verdict: ALLOW}}
      - {deny: {claims: {}}, expect: {status: rejected}}
      - {propose: {}, expect: [{verdict: DENY}], at: tomorrow}
      - {propose: {}, expect: [{verdict: DENY}]}
  - 7
  - {name: nothing}
  - name: raw
    session: {claims: [], agent: 3}
    request: {context: {call_digest: $call_digest}}
    returns: 5
    expect: {verdict: DENY}
  - name: also raw
    request: {context: {call_digest: $call_digest}}
    expect: {verdict: DENY}
"""

    whole = "`$call_digest` cannot be made of a request without whole subject, action, resource and context"
    assert faults(text) == [
        "scenarios.yaml:2:1: unknown key `sesion` (did you mean `session`?)",
        "scenarios.yaml:3:8: nothere.json: no such file (paths are relative to the file that states them)",
        "scenarios.yaml:4:12: nowhere: no such folder (name a folder with Rego files)",
        "scenarios.yaml:8:3: unknown key `fcts` (did you mean `facts`?)",
        "scenarios.yaml:9:9: `time` is not a time such as 2026-07-01T10:00:00Z",
        (
            "scenarios.yaml:13:23: `expect.verdict` must be one of ALLOW, STEP_UP, DENY, not `ALLOWED` "
            "(did you mean `ALLOW`?)"
        ),
        "scenarios.yaml:13:42: `expect.executed` must be true or false, not `yes`",
        "scenarios.yaml:13:63: `expect.obligations[0].parameters` is missing",
        "scenarios.yaml:13:72: `expect.obligations[1]` must be a string, not `5` (write it in quotes)",
        "scenarios.yaml:13:83: `expect.trace` has no field `in_manifst` (did you mean `in_manifest`?)",
        "scenarios.yaml:15:5: unknown key `propse` (did you mean `propose`?)",
        "scenarios.yaml:16:5: unknown key `expct` (did you mean `expect`?)",
        "scenarios.yaml:16:13: unknown key `verdct` (did you mean `verdict`?)",
        "scenarios.yaml:18:21: a scenario for `read_notes`, which manifest 7 does not have (did you mean `read_note`?)",
        (
            "scenarios.yaml:20:11: the name `misspelt` stands twice, first on line 14 (names are unique in a file: "
            "change one)"
        ),
        "scenarios.yaml:22:5: `plan` stands beside `propose` (a step does one thing: make two steps of it)",
        "scenarios.yaml:23:13: `expect` must not be empty (state what has to come of it, such as `verdict: DENY`)",
        "scenarios.yaml:25:5: `propose` stands beside `steps` (move it into a step, or leave `steps` out)",
        "scenarios.yaml:27:27: `at` must be a string, not `2026` (write it in quotes)",
        "scenarios.yaml:28:9: a step must be a mapping (it needs one of propose, plan, approve, deny, request)",
        "scenarios.yaml:29:34: `expect` must be a list of 2 (one for each proposal of the plan)",
        "scenarios.yaml:29:60: `returns` must be a list of 2 (one for each proposal of the plan)",
        "scenarios.yaml:30:28: `approve.claims` must be a mapping, not `3`",
        "scenarios.yaml:31:39: `status` is nothing that can be expected of `deny` (known here: approval, refused)",
        "scenarios.yaml:32:54: `at` must be a time such as 2026-07-01T10:00:00Z, not `tomorrow`",
        "scenarios.yaml:33:31: `expect` of `propose` must be a mapping (only a plan has a list of them)",
        "scenarios.yaml:34:5: a scenario must be a mapping (write `- name: ...` with what it does below)",
        "scenarios.yaml:35:5: does nothing (it needs one of propose, plan, approve, deny, request)",
        "scenarios.yaml:35:5: `expect` is missing",
        "scenarios.yaml:37:23: `claims` must be a mapping, not a list",
        "scenarios.yaml:37:34: `agent` must be a string, not `3` (write it in quotes)",
        "scenarios.yaml:39:5: `returns` says nothing about `request` (no tool is run)",
        f"scenarios.yaml:42:14: {whole} (write any text that looks like a digest instead)",
        "tools.py:1:7: not Python: invalid syntax",
    ]


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["scenarios.yaml:1:1: the file is empty"]),
        (
            "manifst: manifest.json\nscenarios: [{nmae: a, request: 1, expect: {verdict: DENY}}]\n",
            [
                "scenarios.yaml:1:1: unknown key `manifst` (did you mean `manifest`?)",
                "scenarios.yaml:2:14: unknown key `nmae` (did you mean `name`?)",
            ],
        ),
        ("- name: a\n", ["scenarios.yaml:1:1: a scenario file must be a mapping (check that it is the right file)"]),
        (
            "manifest: manifest.json\n",
            ["scenarios.yaml:1:1: no scenarios in it (a file for `extends` alone is not run; else add `scenarios:`)"],
        ),
        (
            "manifest: manifest.json\nscenarios: []\n",
            ["scenarios.yaml:2:12: `scenarios` must not be empty (begin each scenario with `- name:`)"],
        ),
        (
            "manifest: manifest.json\nscenarios: {a: 1}\n",
            ["scenarios.yaml:2:12: `scenarios` must be a list (begin each scenario with `- name:`)"],
        ),
        (
            "scenarios: [{name: a, request: 1, expect: {verdict: DENY}}]\n",
            ["scenarios.yaml:1:1: names no manifest (state `manifest: FILE`, beside `scenarios:` or where it extends)"],
        ),
        (
            "manifest: none.json\nscenarios: [{name: a, request: 1, expect: {verdict: DENY}}]\n",
            ["scenarios.yaml:1:11: none.json: no such file (paths are relative to the file that states them)"],
        ),
        (
            (
                "manifest: manifest.json\nbundle: b\npolicies: [p]\n"
                "scenarios: [{name: a, request: 1, expect: {verdict: DENY}}]\n"
            ),
            [
                (
                    "scenarios.yaml:2:1: `bundle` stands beside `policies` "
                    "(a bundle holds its policies: leave one of them out)"
                ),
                "scenarios.yaml:2:9: b: no such file (paths are relative to the file that states them)",
                "scenarios.yaml:3:12: p: no such folder (name a folder with Rego files)",
            ],
        ),
        (
            "manifest: manifest.json\nscenarios: [{name: a, propose: {tool: read_note}, expect: {verdict: DENY}}]\n",
            ["scenarios.yaml:2:13: no session says who calls (state `session: {claims: {sub: ...}}`)"],
        ),
        (
            "manifest: manifest.json\nextends: [a]\nscenarios: [{name: a, request: 1, expect: {verdict: DENY}}]\n",
            ["scenarios.yaml:2:10: `extends` must be a string, not a list"],
        ),
        (
            HEAD + "  - {name: a, propose: {tool: shell}, expect: {status: rejected}}\n",
            [
                (
                    "scenarios.yaml:4:31: a scenario for `shell`, which manifest 7 does not have "
                    "(if that is the point of it, expect `rejection: INVALID_TOOL_NAME`)"
                )
            ],
        ),
        (
            HEAD + "  - {name: a, steps: [], why: ''}\n",
            [
                (
                    "scenarios.yaml:4:22: `steps` must be a list with at least one step "
                    "(it needs one of propose, plan, approve, deny, request)"
                ),
                "scenarios.yaml:4:31: `why` must not be empty",
            ],
        ),
    ],
)
def test_faults(text: str | bytes, expected: list[str]) -> None:
    assert faults(text) == expected


def test_a_tool_that_the_manifest_does_not_have_may_be_the_point() -> None:
    suite = loaded(
        Path(),
        one(name="a", propose={"tool": "shell"}, expect={"rejection": "INVALID_TOOL_NAME"}),
        one(name="b", propose={"tool_name": "shell"}, expect={"trace": {"in_manifest": False}}),
        one(name="c", propose="no object", expect={"rejection": "INVALID_PAYLOAD"}),
    )

    assert len(suite.scenarios) == 3


@pytest.mark.parametrize(
    ("extends", "fault"),
    [
        (
            "b.yaml",
            (
                "c.yaml:1:10: `extends` goes in a circle: scenarios.yaml -> b.yaml -> c.yaml -> scenarios.yaml "
                "(take one of them out)"
            ),
        ),
        (
            "./scenarios.yaml",
            "scenarios.yaml:1:10: `extends` goes in a circle: scenarios.yaml -> scenarios.yaml (take one of them out)",
        ),
        ("gone.yaml", "scenarios.yaml:1:10: `extends`: gone.yaml: no such file (check the path)"),
    ],
)
def test_extends_in_a_circle_or_to_no_file(extends: str, fault: str) -> None:
    """What no file states may stand where nobody could look: that no manifest is named is not said as well."""
    Path("b.yaml").write_text("extends: c.yaml\n")
    Path("c.yaml").write_text("extends: scenarios.yaml\n")

    assert faults(f"extends: {extends}\nscenarios: [{{name: a, request: 1, expect: {{verdict: DENY}}}}]\n") == [fault]


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("[1]", ["base.yaml:1:1: a scenario file must be a mapping (check that it is the right file)"]),
        (
            "tols: 1\nsession: {claims: 1}\n",
            [
                "base.yaml:1:1: unknown key `tols` (did you mean `tools`?)",
                "base.yaml:1:7: `tools` must be a string, not `1` (write it in quotes)",
                "base.yaml:2:19: `claims` must be a mapping, not `1`",
            ],
        ),
    ],
)
def test_a_file_that_is_extended_has_its_own_faults(below: str, expected: list[str]) -> None:
    Path("base.yaml").write_text(below)
    text = "manifest: manifest.json\nextends: base.yaml\nscenarios: [{name: a, request: 1, expect: {verdict: DENY}}]\n"

    assert faults(text) == expected


def test_faults_of_the_manifest_are_shown_beside_those_of_the_scenarios() -> None:
    Path("manifest.json").write_text(json.dumps({**MANIFEST, "manifest_version": 7}))

    assert faults(HEAD + "  - {name: a, request: 1, expect: {}}\n") == [
        ("manifest.json:1:22: `manifest_version` must be a string, not `7` (write it in quotes)"),
        "scenarios.yaml:4:35: `expect` must not be empty (state what has to come of it, such as `verdict: DENY`)",
    ]


def test_data_is_read_and_checked() -> None:
    Path("d.json").write_text('{"manifests": {}}')
    text = "manifest: manifest.json\ndata: [d.json]\nscenarios: [{name: a, request: 1, expect: {verdict: DENY}}]\n"

    assert faults(text) == ["d.json:1:2: the root `manifests` is not admitted (only directory and settings are)"]


def test_five_thousand_scenarios_load() -> None:
    suite = loaded(Path(), *(one(name=f"n{at}", propose=READ, expect={"verdict": "ALLOW"}) for at in range(5000)))

    assert (len(suite.scenarios), suite.scenarios[-1].name) == (5000, "n4999")


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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: no such file or folder (check the path)"),
        ("empty", "empty: no scenario file in it (they are called scenarios.yaml or NAME.scenarios.yaml)"),
    ],
)
def test_nothing_is_found(path: str, message: str) -> None:
    Path("empty").mkdir()

    with pytest.raises(UsageError) as raised:
        find_suites([Path(path)])

    assert str(raised.value) == message


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
