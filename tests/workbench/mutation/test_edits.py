"""All mutants that the mutator makes of small Rego modules and manifests, and properties of these mutants."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.opa.modules import Module
from pdp.opa.syntax import Source, parse_modules
from pdp.workbench.mutation.edits import manifest_mutants, rego_mutants
from pdp.workbench.mutation.mutant import RegoMutant
from pdp.workbench.rego_edits import edits
from pdp.workbench.scenarios.files.suite import load_suite

pytestmark = pytest.mark.opa

HEAD = "package custom.concerns.small\n\n"
WEAKENED = {
    "equality weakened", "membership weakened", "text test weakened", "set difference weakened", "key weakened",
    "number bounded", "number rounded", "number shifted", "compared by day", "first element only",
}  # fmt: skip
CASES = yaml.safe_load(Path(__file__).with_name("edits.yaml").read_text())


def found(opa: Path, text: str) -> list[tuple[str, str]]:
    """Return the kind and the text of every mutant of a module. Line numbers are counted after the module's head."""
    whole = HEAD + text
    module = Module(Path("small.rego"), whole, custom=True)
    tree = parse_modules(opa, {"small.rego": module})["small.rego"]
    source = Source(Path("small.rego"), whole)
    made = [
        (source.place(edit.span[0]).line - HEAD.count("\n"), edit.kind, whole[slice(*edit.span)], edit.text)
        for edit in edits(tree, source)
    ]
    return [
        (kind, f"{kind}, line {line}: {_shown(before)} -> {_shown(after)}")
        for line, kind, before, after in sorted(set(made))
    ]


def _shown(text: str) -> str:
    return json.dumps(text) if "\n" in text else text


@pytest.mark.parametrize(
    ("case", "weakened"),
    [pytest.param(case, part == "weakened", id=case["about"]) for part, cases in CASES.items() for case in cases],
)
def test_mutator_makes_every_expected_mutant_of_a_rego_module(opa: Path, case: dict[str, Any], weakened: bool) -> None:
    edited = [words for kind, words in found(opa, case["rego"]) if (kind in WEAKENED) == weakened]

    assert edited == case["edits"]


def of_concern(opa: Path, file: Path, text: str) -> list[RegoMutant]:
    """Return the mutants of a concern in a policy whose decision evaluates the whole concern."""
    decision = Module(
        file.with_name("decision.rego"), "package authz\n\ndecision := data.custom.concerns", custom=False
    )
    modules = {
        "authz/decision.rego": decision,
        "custom/concerns/small/small.rego": Module(file, text, custom=True),
    }
    return [each for each in rego_mutants(opa, modules) if each.module.startswith("custom/")]


def test_mutated_rego_module_parses_and_differs_only_as_its_diff_says(opa: Path, tmp_path: Path) -> None:
    text = HEAD + "p if {\n\tinput.a > 1\n}\n\nelse := 3 if not input.b\n\nelse := {1, 2}\n"
    file = tmp_path / "here" / "small.rego"

    mutants = of_concern(opa, file, text)

    assert len({mutant.text for mutant in mutants}) == len(mutants) == len({mutant.id for mutant in mutants}) > 10
    for mutant in mutants:
        changed = Module(Path("mutant.rego"), mutant.text, custom=True)
        assert parse_modules(opa, {"mutant.rego": changed})["mutant.rego"]["rules"]
        removed = [line[1:] for line in mutant.diff.split("\n")[2:] if line.startswith("-")]
        added = [line[1:] for line in mutant.diff.split("\n")[2:] if line.startswith("+")]
        assert removed != added
        assert all(line in text.split("\n") for line in removed)
        assert all(line in mutant.text.split("\n") for line in added)
        assert mutant.place.file == str(file)


def test_mutant_id_does_not_change_if_other_parts_of_the_file_change(opa: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.rego"
    rule = "p if {\n\tinput.a > 1\n\tinput.b > 1\n}\n"

    def identities(text: str) -> list[tuple[str, int]]:
        return [(each.id, each.place.line) for each in of_concern(opa, file, HEAD + text)]

    before, after = identities(rule), identities(f"# A remark.\nq := 5\n\n{rule}")

    assert {identity for identity, _ in before} < {identity for identity, _ in after}
    assert {line for _, line in before} == {4, 5}
    assert json.dumps(before[0]) == json.dumps(
        ["custom/concerns/small/small.rego:p:rule-dropped:" + before[0][0].rsplit(":", 1)[1], 4]
    )


def test_mutator_skips_rules_that_no_decision_uses(opa: Path, tmp_path: Path) -> None:
    texts = {
        "authz/decision.rego": (
            "package authz\n\nimport data.authz.lib.used as lib\nimport data.authz.other\n\n"
            "decision := _own if lib.yes\n\n_own contains x if some x in data.authz.concerns[_].deny\n\n"
            "plan := other.deny\n\n_alone := 1\n"
        ),
        "authz/lib/used/used.rego": "package authz.lib.used\n\nyes if _deeper == 1\n\n_deeper := 1\n\nno := 2\n",
        "authz/concerns/a/a.rego": (
            "package authz.concerns.a\n\ndeny contains 1 if not data.authz.lib.used.no\n\nidle := 1\n"
        ),
        "authz/other/other.rego": "package authz.other\n\ndeny contains 2 if _inner\n\n_inner := 3\n",
    }
    modules = {path: Module(tmp_path / path, text, custom=False) for path, text in texts.items()}

    assert {(each.package, each.owner) for each in rego_mutants(opa, modules)} == {
        ("authz", "decision"), ("authz", "_own"), ("authz.lib.used", "yes"), ("authz.lib.used", "_deeper"),
        ("authz.lib.used", "no"), ("authz.concerns.a", "deny"), ("authz.concerns.a", "idle"),
    }  # fmt: skip


def test_mutator_weakens_field_writes_and_drops_each_required_source_argument_once(tmp_path: Path) -> None:
    """If provenance also requires an argument, the schema's `required` makes no difference, so no mutant drops it."""
    text = {"type": "string", "maxLength": 9}
    schema = {"type": "object", "required": ["source", "text"], "properties": {"source": text, "text": text}}
    tool = {"effect_class": "stage", "scopes": ["notes"], "schema": schema}
    tools = [
        {"name": "file_note", "writes": "proposal", "provenance": {"required": ["source"]}, **tool},
        {"name": "write_note", "writes": "canonical", **tool},
    ]
    (tmp_path / "m.json").write_text(json.dumps({"manifest_version": "1", "tools": tools}))
    call = {"tool": "file_note", "arguments": {"source": "a", "text": "b"}}
    scenario = {"name": "one", "session": {"claims": {"sub": "ann"}}, "propose": call, "expect": {"verdict": "DENY"}}
    (tmp_path / "s.scenarios.yaml").write_text(json.dumps({"manifest": "m.json", "scenarios": [scenario]}))

    mutants = manifest_mutants(load_suite(tmp_path / "s.scenarios.yaml"))
    kinds = Counter((mutant.tool, mutant.kind) for mutant in mutants)
    assert kinds["write_note", "canonical writes allowed"] == kinds["file_note", "provenance dropped"] == 1
    assert kinds["write_note", "schema loosened"] - kinds["file_note", "schema loosened"] == 1
