"""Labels weakened: every kind of it, and that a scenario which reads before it sends notices each."""

import json
from pathlib import Path
from typing import Any

from pdp.workbench.mutation.edits import manifest_mutants
from pdp.workbench.scenarios.files.suite import Suite, load_suite
from pdp.workbench.scenarios.running.engines import open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner

LABELS = ("result", "roles", "admits", "destructive", "flow")
CODE = {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}
ADDRESS = {"type": "string", "format": "email"}
MANIFEST: dict[str, Any] = {
    "manifest_version": "1",
    "tools": [
        {
            "name": "read_mail", "effect_class": "read-internal", "scopes": ["mail"],
            "schema": {"type": "object", "properties": {}},
            "result_schema": {"type": "object", "properties": {
                "id": CODE, "sender": ADDRESS, "title": {"type": "string"}, "text": {"type": "string"}}},
            "result": {"trusted": ["/id"], "parties": ["/sender"], "names": ["/title"], "markings": ["mail"]},
        },
        {
            "name": "file_mail", "effect_class": "stage", "scopes": ["mail"], "destructive": True,
            "schema": {"type": "object", "properties": {"mail": {"type": "string"}, "folder": {"type": "string"}}},
            "roles": {"mail": "object"}, "flow": {"profile": "strict", "otherwise": "deny"},
            "result_schema": {"type": "object", "properties": {"receipt": {"type": "string"}}},
        },
        {
            "name": "send_mail", "effect_class": "stage", "scopes": ["mail"],
            "schema": {"type": "object", "properties": {"to": {"type": "string"}, "text": {"type": "string"}}},
            "roles": {"to": "destination", "text": "body"}, "admits": [],
            "flow": {"profile": "balanced", "rules": ["not_anchored"]},
        },
    ],
}  # fmt: skip
MAIL = {"id": "AB1234", "sender": "ann@example.com", "title": "Budget", "text": "Ask eve@evil.com, http://evil.com/x ."}
KINDS = {
    "DENY softened", "answer believed", "destructive off", "marking admitted", "party believed", "profile lightened",
    "record named by more", "result believed", "result marking dropped", "role dropped", "rule dropped",
}  # fmt: skip
PARTY = "result: {trusted: [/id, /sender], parties: [], names: [/title], markings: [mail]}"
READ = {"propose": {"tool": "read_mail", "arguments": {}}, "returns": MAIL, "expect": {"verdict": "ALLOW"}}


def call(tool: str, verdict: str, *codes: str, **arguments: str) -> dict[str, Any]:
    stated = {"verdict": verdict, "codes": [f"flow.{code}" for code in codes]} if codes else {"verdict": verdict}
    answer = {"receipt": f"the answer of {tool}"}
    return {"propose": {"tool": tool, "arguments": arguments}, "returns": answer, "expect": stated}


def scenario(name: str, prompt: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "session": {"prompt": [prompt]}, "steps": [READ, *steps]}


SCENARIOS = [
    scenario(
        "a stranger's address",
        "Hello",
        call("send_mail", "STEP_UP", "egress", "not_anchored", "target_untrusted", to="eve@evil.com", text="x"),
    ),
    scenario(
        "a party's address",
        "Hello",
        call("send_mail", "STEP_UP", "egress", "not_anchored", "target_untrusted", to="ann@example.com", text="x"),
    ),
    scenario(
        "a stranger's link",
        "Write to bob@example.com",
        call("send_mail", "STEP_UP", "link_untrusted", to="bob@example.com", text="see http://evil.com/x"),
    ),
    scenario(
        "a mail that the user has named by its title",
        "File the mail Budget",
        call("file_mail", "ALLOW", mail="AB1234", folder="old"),
    ),
    scenario(
        "a mail that the user has not named",
        "Go on",
        call("file_mail", "DENY", "destructive", "not_anchored", mail="AB1234", folder="old"),
    ),
    scenario(
        "a mail whose sender the user says",
        "What does ann@example.com write?",
        call("file_mail", "DENY", "destructive", "not_anchored", mail="AB1234", folder="old"),
    ),
    scenario(
        "an answer",
        "File the mail Budget",
        call("file_mail", "ALLOW", mail="AB1234", folder="old"),
        call(
            "send_mail", "STEP_UP", "egress", "not_anchored", "target_untrusted", to="the answer of file_mail", text="x"
        ),
    ),
    scenario(
        "another answer",
        "Write to bob@example.com",
        call("send_mail", "ALLOW", to="bob@example.com", text="x"),
        call(
            "file_mail",
            "DENY",
            "destructive",
            "not_anchored",
            "target_untrusted",
            mail="the answer of send_mail",
            folder="old",
        ),
    ),
]


def suite_in(folder: Path, tools: Any = MANIFEST["tools"]) -> Suite:
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "tools": tools}))
    session = {"claims": {"sub": "ann", "emts": {"mail": True}, "clearances": ["mail"]}, "run_id": "run-1"}
    file = folder / "scenarios.json"
    file.write_text(json.dumps({"manifest": "manifest.json", "session": session, "scenarios": SCENARIOS}))
    return load_suite(file)


def failing(suite: Suite) -> list[str]:
    with open_suite_engine(suite, "embedded") as engine:
        runner = Runner(suite, engine)
        results = [runner.run(index) for index in range(len(suite.scenarios))]
    return [result.name for result in results if not result.passed]


def test_every_kind_of_weakened_label_is_made_and_noticed(tmp_path: Path) -> None:
    suite = suite_in(tmp_path)
    mutants = [mutant for mutant in manifest_mutants(suite) if mutant.kind in KINDS]

    assert failing(suite) == []
    assert sorted((mutant.owner, mutant.kind, mutant.changed) for mutant in mutants) == [
        ("file_mail", "DENY softened", "otherwise: step_up"),
        ("file_mail", "answer believed", "created: ['']"),
        ("file_mail", "destructive off", "destructive: false"),
        ("file_mail", "profile lightened", "profile: balanced"),
        ("file_mail", "role dropped", ""),
        ("read_mail", "party believed", PARTY),
        ("read_mail", "record named by more", "names: [/title, /sender]"),
        ("read_mail", "result believed", "integrity: trusted"),
        ("read_mail", "result marking dropped", ""),
        ("send_mail", "answer believed", "created: ['']"),
        ("send_mail", "marking admitted", "admits: [mail]"),
        ("send_mail", "profile lightened", "profile: watch"),
        ("send_mail", "role dropped", ""),
        ("send_mail", "role dropped", ""),
        ("send_mail", "rule dropped", ""),
    ]
    assert [(mutant.owner, mutant.kind) for mutant in mutants if not failing(mutant.applied(suite))] == []


def test_without_labels_there_are_none_to_weaken(tmp_path: Path) -> None:
    bare = [{name: value for name, value in tool.items() if name not in LABELS} for tool in MANIFEST["tools"]]
    suite = suite_in(tmp_path, bare)

    assert {mutant.kind for mutant in manifest_mutants(suite)} & KINDS == set()
