"""A mutation run on a weak suite lists survivors, proposes scenarios that kill them, and obeys marks of equivalents."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.errors import FileFaultsError, UsageError
from pdp.workbench.mutation.edits import rego_mutants
from pdp.workbench.mutation.mutant import Fate, Judgement
from pdp.workbench.mutation.run import MutationRun
from pdp.workbench.scenarios.files.suite import load_suite, policy_modules
from pdp.workbench.shown_file import shown_file
from tests.support import PATIENCE, ROOT, until
from tests.support.command_line import environment, pdp
from tests.support.scenario_files import READ, one, project
from tests.workbench.mutation.weak_project import CONDITION, MODULE, REGO, WEAK, mutated, weak_project, wire

pytestmark = pytest.mark.opa

OWN = "ceiling.rego"
AMOUNT = "input.context.arguments.amount"
LIMIT = f"number.at_most(50, {AMOUNT})"
BELOW = wire(49.6, verdict="ALLOW")
NEAR = (wire(50, verdict="DENY"), BELOW)
"""With these scenarios, only the mutant with the limit 49.999 survives. The search for each survivor takes a second."""


NEW_CONCERN = """# METADATA
# title: Notes
# description: Some amounts are not wired.
package custom.concerns.notes

import data.authz.lib.reason

# METADATA
# title: Foreign
# description: The amount is not wired.
# custom: {code: notes.foreign}
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "send_wire"
	_unwanted(input.context.arguments.amount)
}

# A helper of the rule, which the same scenario reaches.
_unwanted(amount) if {
	amount == 7
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary folder, so that file names in messages are relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changes(run: MutationRun, fate: Fate) -> set[tuple[str, str, str]]:
    """Return kind, original text and changed text of each mutant that ended with this fate."""
    return {(each.mutant.kind, each.mutant.original, each.mutant.changed) for each in run.of(fate)}


def proposed(survivor: Judgement) -> dict[str, Any]:
    """Return the scenario that the run proposes to kill a survivor."""
    assert survivor.proposal is not None
    assert survivor.proposal.scenario is not None
    (scenario,) = yaml.safe_load(survivor.proposal.scenario)
    assert isinstance(scenario, dict)
    return scenario


def test_scenario_proposed_for_a_surviving_mutant_kills_that_mutant() -> None:
    weak = mutated(weak_project(Path()), only=OWN)

    assert changes(weak, Fate.SURVIVED) == {
        ("constant moved", "50", "51"), ("constant moved", "50", "49"),
        ("number shifted", "50", "50.001"), ("number shifted", "50", "49.999"),
        ("number rounded", AMOUNT, f"round({AMOUNT})"),
    }  # fmt: skip
    assert changes(weak, Fate.KILLED) == {
        ("verdict swapped", "deny", "step_up"),
        ("rule dropped", "", "false\n\t"),
        ("condition dropped", LIMIT, "true"),
        ("condition negated", LIMIT, f"not {LIMIT}"),
    }
    assert {each.by for each in weak.of(Fate.KILLED)} <= {
        "scenarios.json:1 a wire of 20", "scenarios.json:1 a wire of 90",
    }  # fmt: skip
    assert {(each.mutant.place.file, each.mutant.place.line) for each in weak.of(Fate.SURVIVED)} == {
        (f"policies/{MODULE}", CONDITION)
    }
    assert (weak.total, len(weak.judgements), weak.complete, weak.notes) == (9, 9, True, [])
    assert weak.score == pytest.approx(100 * 4 / 9)

    # Each cause, which is a rule and a kind of mutant, gets one scenario. Other mutants of the cause may need another.
    scenarios: dict[str, dict[str, Any]] = {}
    for _ in range(3):
        survivors = [each for each in weak.of(Fate.SURVIVED) if each.proposal]
        scenarios |= {scenario["name"]: scenario for scenario in map(proposed, survivors)}
        weak = mutated(weak_project(Path(), *scenarios.values()), only=OWN)

    assert (weak.count(Fate.KILLED), weak.count(Fate.SURVIVED), weak.score) == (9, 0, 100)
    assert all(scenario.keys() == {"name", "propose", "expect"} for scenario in scenarios.values())


def test_mutation_of_a_new_concern_first_shows_the_rules_that_no_scenario_reaches() -> None:
    file = weak_project(Path(), *NEAR)
    module = Path("policies/custom/concerns/notes/notes.rego")
    module.parent.mkdir()
    module.write_text(NEW_CONCERN)
    done = pdp("mutate", str(file), "--only", ".rego")
    head, scenario, helper, *rest = done.out.splitlines()
    where = "policies/custom/concerns/notes/notes.rego"

    assert (done.code, done.err) == (0, "")
    assert head == f"{where}:12: no scenario reaches notes.foreign (17 mutants); add to scenarios.json:"
    assert yaml.safe_load(scenario) == [
        {
            "name": "send_wire with amount 7 is DENY",
            "propose": {"tool": "send_wire", "arguments": {"amount": 7}},
            "expect": {"verdict": "DENY", "codes": ["notes.foreign"]},
        }
    ]
    assert (
        helper == f"{where}:18: no scenario reaches _unwanted (6 mutants); the scenario for {where}:12 also detects it"
    )
    assert rest[-1].endswith("; 21 more in rules that no scenario reaches")
    assert len(rest) < 10

    project(Path(), *WEAK, *NEAR, *yaml.safe_load(scenario), policies=["policies"])
    reached = pdp("mutate", str(file), "--only", ".rego", "--json").json

    assert reached["killed"] > 15
    assert all(survivor["unreached"] == 0 for survivor in reached["survivors"])


def test_mutation_run_proposes_no_scenario_for_a_mutant_without_effect() -> None:
    tool = "send_wire:schema-loosened"
    weak = mutated(weak_project(Path(), one(name="read", propose=READ, expect={"verdict": "ALLOW"})), only=tool)
    survivors = weak.of(Fate.SURVIVED)

    assert {(each.mutant.owner, each.mutant.original, each.mutant.changed) for each in survivors} == {
        ("send_wire", original, changed)
        for original, changed in (
            ("required: amount", ""), ("type: number", ""), ("", "additionalProperties: true"),
        )
    }  # fmt: skip

    # The three survivors have one cause, so a scenario is searched once.
    (proposal,) = (survivor.proposal for survivor in survivors if survivor.proposal)
    assert proposal.scenario is None
    assert str(proposal.note).startswith("no difference in 3 recorded and ")


def test_mutation_run_proposes_no_scenario_if_a_mutant_changes_only_the_details() -> None:
    read = one(name="read", propose=READ, expect={"verdict": "ALLOW"})
    (survivor,) = mutated(weak_project(Path(), read), only="effect-class").of(Fate.SURVIVED)

    assert survivor.proposal is not None
    assert survivor.proposal.scenario is None
    assert str(survivor.proposal.note).startswith("no scenario can propose one of ")


def test_mutation_run_proposes_scenarios_for_mutants_of_custom_rego_first(monkeypatch: pytest.MonkeyPatch) -> None:
    file = weak_project(Path())
    monkeypatch.setattr("pdp.workbench.mutation.run.MOST_SEARCHED", 1)

    run = mutated(file)
    survivors = run.of(Fate.SURVIVED)

    assert survivors[0].mutant.place.file == "manifest.json"
    assert [survivor.mutant.place.file for survivor in survivors if survivor.proposal] == [f"policies/{MODULE}"]
    assert run.notes == ["searched scenarios for 1 of 11 rules and kinds of mutants only, those in your own Rego first"]


def test_mutate_command_includes_the_baseline_policies_if_requested() -> None:
    file = weak_project(Path())

    assert mutated(file, only="at_most:rule-dropped").total == 0
    run = mutated(file, only="at_most:rule-dropped", baseline=True)

    assert [each.mutant.place.file for each in run.of(Fate.KILLED)] == ["policies/authz/lib/number/number.rego"]
    assert (run.total, run.complete) == (1, True)


def test_mutation_report_shows_short_file_names(tmp_path: Path) -> None:
    assert [shown_file(each) for each in (tmp_path / "a/b.rego", Path("c.rego"), "/elsewhere/d.rego")] == [
        "a/b.rego", "c.rego", "/elsewhere/d.rego",
    ]  # fmt: skip
    assert shown_file(ROOT / "policies/authz/decision.rego") == "policies/authz/decision.rego"


def test_mutation_of_a_failing_suite_is_an_error() -> None:
    file = project(Path(), wire(20, verdict="DENY"))

    with pytest.raises(UsageError) as raised:
        mutated(file)

    assert raised.value.message == ("1 scenario fails without any mutant: scenarios.json:1 `a wire of 20`")
    assert raised.value.hint == "fix them first; run: pdp test PATH"


@pytest.mark.process
def test_interrupted_mutation_run_prints_its_results(opa: Path, tmp_path: Path) -> None:
    """A wrapper around OPA writes a line at each start of OPA, so the test knows when the run judges mutants."""
    file = weak_project(Path())
    log, program = tmp_path / "runs", tmp_path / "opa"
    program.write_text(f'#!/bin/sh\necho run >> "{log}"\nexec "{opa}" "$@"\n')
    program.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "pdp", "mutate", str(file), "--baseline"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(PDP_OPA=str(program), PYTHONPATH=str(ROOT)),
    )  # fmt: skip

    def judging() -> bool:
        assert process.poll() is None, process.communicate()
        return log.exists() and log.read_text().count("run") >= 60

    assert until(judging)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130
    assert err == ""
    last = out.splitlines()[-1]
    assert last.startswith("interrupted; ")
    assert " of " in last
    assert "Traceback" not in out


def marks(*entries: object) -> Path:
    """Write a file that marks mutants as equivalent."""
    file = Path("mutants.yaml")
    file.write_text(yaml.safe_dump(list(entries)))
    return file


def identity(opa: Path, file: Path, changed: str) -> str:
    mutants = rego_mutants(opa, policy_modules(load_suite(file)))
    return next(mutant.id for mutant in mutants if OWN in mutant.id and mutant.changed == changed)


def test_surviving_mutant_marked_as_equivalent_is_not_scored(opa: Path) -> None:
    file = weak_project(Path(), *NEAR)
    survivor, killed = (identity(opa, file, changed) for changed in ("49.999", "step_up"))
    marked = marks(
        {"mutant": survivor, "reason": "nobody sends fractions"},
        {"mutant": killed, "reason": "no"},
        {"mutant": "other/data.yaml:a:b:1", "reason": "r"},
    )
    run = mutated(file, only=OWN, marks=[marked])

    assert [(each.mutant.id, each.by) for each in run.of(Fate.EQUIVALENT)] == [(survivor, "nobody sends fractions")]
    assert (run.count(Fate.KILLED), run.count(Fate.SURVIVED), run.score, run.complete) == (8, 0, 100, True)
    killer = run.judgements[killed].by
    assert killer in ("scenarios.json:1 a wire of 90", "scenarios.json:1 a wire of 50")
    assert [(str(fault.place), fault.message, fault.hint) for fault in run.faults] == [
        ("mutants.yaml:3:11", f"`{killed}` is listed as equivalent, but was killed by {killer}", "remove this entry")
    ]
    assert run.notes == ["marked as equivalent in files that these scenarios do not use: other/data.yaml"]


def test_mutant_marked_as_equivalent_that_changes_a_decision_is_a_fault(opa: Path) -> None:
    file = weak_project(Path())
    module = Path("policies") / MODULE
    module.write_text(REGO.replace("rule(), {})", 'rule(), {"units": _units})') + '\n_units := ["eur", "usd"]\n')
    noticed = identity(opa, file, '["usd"]')
    run = mutated(file, only="element-lost", marks=[marks({"mutant": noticed, "reason": "no"})])

    assert [(fault.message, fault.hint) for fault in run.faults] == [
        (
            f"`{noticed}` is not equivalent: 1 recorded request is decided differently",
            "expect the difference in a scenario",
        )
    ]


def test_equivalence_mark_that_matches_no_mutant_is_a_fault() -> None:
    gone = f"{MODULE}:deny:comparison-moved:00000000"

    with pytest.raises(FileFaultsError) as raised:
        mutated(weak_project(Path()), only=OWN, marks=[marks({"mutant": gone, "reason": "r"})])

    assert [(fault.place.line, fault.message, fault.hint) for fault in raised.value.faults] == [
        (1, f"no mutant `{gone}`", "its text has changed: update the id, or remove the entry")
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a: b\n", ["mutants.yaml:1:1: must be a list"]),
        ("- a\n", ["mutants.yaml:1:3: must be a mapping, not `a`"]),
        (
            "- {mutant: 1, reson: b}\n",
            [
                "mutants.yaml:1:3: `reason` is missing",
                "mutants.yaml:1:12: `mutant` must be a string, not `1`",
                "mutants.yaml:1:15: unknown key `reson`",
            ],
        ),
        ("- {mutant: a, reason: b}\n- {mutant: a, reason: c}\n", ["mutants.yaml:2:12: `a` is listed twice"]),
    ],
)
def test_faulty_mutants_file_is_reported_with_locations(text: str, faults: list[str]) -> None:
    Path("mutants.yaml").write_text(text)

    with pytest.raises(FileFaultsError) as raised:
        mutated(weak_project(Path()), marks=[Path("mutants.yaml")])

    assert [f"{fault.place}: {fault.message}" for fault in raised.value.faults] == faults


def test_json_output_of_mutate_is_complete() -> None:
    weak_project(Path())
    done = pdp("mutate", ".", "--only", "constant-moved", "--max-survivors", "2", "--json")
    first, second = done.json["survivors"]
    survivor = dict(first)
    proposal = survivor.pop("proposal")
    diff = survivor.pop("diff")

    assert (done.code, done.err) == (0, "")
    assert {key: value for key, value in done.json.items() if key != "survivors"} == {
        "killed": 0, "survived": 2, "equivalent": 0, "invalid": 0, "total": 2, "score": 0.0, "complete": True,
        "notes": [],
    }  # fmt: skip
    assert survivor == {
        "id": survivor["id"], "kind": "constant moved", "owner": "deny", "file": f"policies/{MODULE}",
        "line": CONDITION, "original": "50", "changed": survivor["changed"], "unnoticed": 0,
        "unreached": 0,
    }  # fmt: skip
    assert {survivor["changed"], second["changed"]} == {"49", "51"}
    assert diff.splitlines()[:2] == [f"--- policies/{MODULE}", f"+++ policies/{MODULE} (mutant)"]
    assert (set(proposal), proposal["file"], proposal["note"]) == (
        {"scenario", "file", "note", "loosens"}, "scenarios.json", None,
    )  # fmt: skip


def test_mutate_fails_if_more_than_max_survivors_survive() -> None:
    weak_project(Path(), BELOW)
    done = pdp("mutate", "scenarios.json", "--only", OWN, "--max-survivors", "2")

    # Survivors are grouped by rule and kind. Causes that allow more calls come first.
    dangers = ["loosens the policy" in line for line in done.out.splitlines() if not line.startswith(" ")]
    assert dangers == [True, False, False]
    assert "@@" not in done.out
    assert (done.code, done.out.splitlines()[-1], done.err) == (
        1, "9 mutants: 6 killed, 3 survived; score 66.7 %", "",
    )  # fmt: skip

    verbose = pdp("mutate", "scenarios.json", "--only", OWN, "--verbose").out
    assert verbose.startswith(done.out[: done.out.rindex("9 mutants")])
    assert verbose.count("@@ -") == 3


def test_equal_seeds_select_equal_samples_of_mutants() -> None:
    file = weak_project(Path(), *NEAR, wire(49.9995, verdict="ALLOW"))
    first, other = (mutated(file, only=OWN, sample=3, seed=seed) for seed in "ab")

    assert (first.total, first.notes) == (3, ["tested 3 of 9 mutants, drawn with the seed 'a'"])
    assert mutated(file, only=OWN, sample=3, seed="a").judgements.keys() == first.judgements.keys()
    assert other.judgements.keys() != first.judgements.keys()
    assert (mutated(file, only=OWN, sample=9, seed="a").total, mutated(file, only=OWN, sample=9).notes) == (9, [])


def test_mutate_with_seed_but_without_sample_exits_with_2() -> None:
    weak_project(Path())
    done = pdp("mutate", ".", "--seed", "a")

    assert (done.code, done.out, done.err) == (
        2, "", "error: --seed has no effect without --sample\n    hint: add --sample\n",
    )  # fmt: skip


def test_mutate_without_any_mutants_exits_with_2() -> None:
    weak_project(Path())
    done = pdp("mutate", ".", "--only", "no such thing")

    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: --only 'no such thing': no mutant matches\n"
        "    hint: give scenario files with your own policies, or add --baseline\n"
    )
