"""All types of mutants of data labels are created. A scenario that reads data and then sends the data kills them."""

import json
from pathlib import Path
from typing import Any

import yaml

from pdp.workbench.mutation.edits import manifest_mutants
from pdp.workbench.scenarios.files.suite import Suite, load_suite
from pdp.workbench.scenarios.running.engines import open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner

LABELS = ("result", "roles", "admits", "destructive", "flow")
STATED = yaml.safe_load(Path(__file__).with_name("labels.yaml").read_text())
MANIFEST: dict[str, Any] = STATED["manifest"]
KINDS = {
    "DENY softened", "answer believed", "destructive off", "marking admitted", "party believed", "profile lightened",
    "record named by more", "result believed", "result marking dropped", "role dropped", "rule dropped",
}  # fmt: skip
PARTY = "result: {trusted: [/id, /sender], parties: [], names: [/title], markings: [mail]}"


SCENARIOS = STATED["scenarios"]


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


def test_scenario_kills_the_mutants_of_every_label_field(tmp_path: Path) -> None:
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


def test_manifest_without_labels_has_no_label_mutants(tmp_path: Path) -> None:
    bare = [{name: value for name, value in tool.items() if name not in LABELS} for tool in MANIFEST["tools"]]
    suite = suite_in(tmp_path, bare)

    assert {mutant.kind for mutant in manifest_mutants(suite)} & KINDS == set()
