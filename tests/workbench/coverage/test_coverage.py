"""Coverage of rules, tools and roles by scenarios, and the gaps that a report lists."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.workbench.coverage import Coverage, measure
from pdp.workbench.scenarios.files.suite import Suite, load_suite
from pdp.workbench.scenarios.results import ScenarioResult
from pdp.workbench.scenarios.running.engines import open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner
from tests.support import ROOT

NOTES = Path(__file__).with_name("notes")
READ = {"tool": "read_note", "arguments": {}}
SCENARIOS = yaml.safe_load((NOTES / "cases.yaml").read_text())


def suite_in(folder: Path, scenarios: list[Any] | str) -> Suite:
    shutil.copytree(NOTES, folder, dirs_exist_ok=True)
    head = yaml.safe_dump(
        {
            "manifest": "manifest.yaml",
            "policies": ["policies"],
            "session": {"claims": {"sub": "u", "emts": {"notes": True}}},
        }
    )
    body = scenarios if isinstance(scenarios, str) else f"scenarios:\n{yaml.safe_dump(scenarios)}"
    (folder / "scenarios.yaml").write_text(head + body)
    return load_suite(folder / "scenarios.yaml")


def results_of(suite: Suite) -> list[ScenarioResult]:
    with open_suite_engine(suite, "embedded") as engine:
        return Runner(suite, engine).run_all()


def measured(suite: Suite, opa: Path | None) -> Coverage:
    return measure([(suite, results_of(suite))], opa)


@pytest.mark.opa
def test_coverage_measures_codes_lines_verdicts_and_roles(tmp_path: Path, opa: Path) -> None:
    coverage = measured(suite_in(tmp_path, SCENARIOS), opa)
    rego, file = str(tmp_path / "policies/custom/concerns/hours/hours.rego"), str(tmp_path / "scenarios.yaml")
    found = coverage.as_json()
    own = [item for item in found["codes"] if item["counts"]]
    assert own == [
        {
            "code": code, "part": part, "file": rego, "line": line, "scenario": scenario and f"{file}: {scenario}",
            "exempt": exempt, "counts": True,
        }
        for code, part, line, scenario, exempt in [
            ("hours.closed", "deny", 13, "at night", None),
            ("hours.late", "step_up", 23, None, None),
            ("hours.logged", "obligations", 43, "read", None),
            ("hours.never", "deny", 34, None, "No request has this type."),
        ]
    ]  # fmt: skip
    del found["codes"]
    # One scenario failed. The lines, codes and verdict that no other scenario reached do not count.
    assert found == {
        "percent": 62.5,
        "lines": [{"file": rego, "covered": 5, "missed": [23, 24, 25]}],
        "matrix": [
            {"tool": "read_note", "manifest_version": "1", "ALLOW": 1, "STEP_UP": 0, "DENY": 1, "rejected": 0},
            {"tool": "send_note", "manifest_version": "1", "ALLOW": 0, "STEP_UP": 0, "DENY": 0, "rejected": 1},
        ],
        "missing": [
            {
                "kind": "allow",
                "name": "send_note",
                "message": "no scenario in which send_note of manifest 1 is ALLOW",
                "file": file,
            },
            {
                "kind": "code",
                "name": "hours.late",
                "message": f"no scenario reaches hours.late ({rego}:23)",
                "file": file,
            },
        ],
        "roles": [],
    }
    assert coverage.complaints(63) == (
        "no scenario in which send_note of manifest 1 is ALLOW",
        f"no scenario reaches hours.late ({rego}:23)",
        "lines of Rego: 62.5 % are covered, 63 % are required",
    )
    assert coverage.complaints(62) == coverage.complaints(63)[:2] == coverage.complaints(None)


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_covered_lines_are_unknown_without_opa(tmp_path: Path) -> None:
    coverage = measured(suite_in(tmp_path, SCENARIOS), None)
    assert (coverage.lines, coverage.percent, coverage.as_json()["lines"]) == (None, None, None)
    assert coverage.complaints(0)[2:] == ("lines of Rego: unknown without OPA; run: pdp opa install",)
    assert [item.name for item in coverage.missing] == ["send_note", "hours.late"]


@pytest.mark.opa
def test_coverage_report_combines_the_results_of_several_suites(tmp_path: Path, opa: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    late = [
        {**SCENARIOS[4], "name": "late", "expect": {"codes": ["hours.late"]}},
        {**SCENARIOS[4], "name": "sent", "session": {}, "expect": {"verdict": "ALLOW"}},
    ]
    suites = [suite_in(tmp_path / "a", SCENARIOS), suite_in(tmp_path / "b", late)]
    coverage = measure([(suite, results_of(suite)) for suite in suites], opa)
    assert coverage.missing == ()
    assert [(row.tool, *row.counts.values()) for row in coverage.matrix] == [
        ("read_note", 1, 0, 1, 0),
        ("send_note", 1, 1, 0, 1),
    ]


@pytest.mark.opa
def test_baseline_scenarios_cover_the_baseline(opa: Path) -> None:
    suites = [load_suite(ROOT / f"tests/scenarios/{name}.scenarios.yaml") for name in ("limits", "spending")]
    coverage = measure([(suite, results_of(suite)) for suite in suites], opa)
    assert coverage.lines is not None
    assert {file.file for file in coverage.lines} == {
        str(file) for file in (ROOT / "policies/authz").rglob("*.rego") if not file.name.endswith("_test.rego")
    }
    limits = {file.file: file.missed for file in coverage.lines if Path(file.file).name == "limits.rego"}
    assert list(limits.values()) == [(), ()]
    assert {item.code for item in coverage.codes if item.scenario} >= {
        "limits.cumulative_exceeded",
        "limits.exceeded",
        "limits.invalid",
    }


@pytest.mark.opa
def test_coverage_of_a_project_without_custom_rego_counts_only_tools(tmp_path: Path, opa: Path) -> None:
    suite = suite_in(tmp_path, SCENARIOS[:1])
    text = suite.file.read_text().replace("policies:\n- policies\n", "")
    suite.file.write_text(text)
    coverage = measured(load_suite(suite.file), opa)
    assert (coverage.lines, coverage.percent) == ((), 100)
    assert [code.code for code in coverage.codes if code.file is not None] == []
    assert [(missing.kind, missing.name) for missing in coverage.missing] == [
        ("allow", "send_note"), ("refusal", "read_note"), ("refusal", "send_note"),
    ]  # fmt: skip
    assert coverage.complaints(100) == tuple(missing.message for missing in coverage.missing)


def test_coverage_reports_roles_that_no_untrusted_value_reached() -> None:
    suite = load_suite(ROOT / "examples/assistant/scenarios.yaml")

    results = results_of(suite)

    coverage, tasks = (measure([(suite, some)], None) for some in (results, results[:1]))

    reached = {(role.tool, role.argument): role.scenario for role in coverage.roles}
    assert set(reached) == {
        (tool.name, argument) for tool in suite.manifest.tools.values() for argument in tool.roles or {}
    }
    assert reached["send_mail", "to"] == f"{suite.file}: attack 1, a mail names who is to get the report"
    assert reached["send_mail", "body"] == f"{suite.file}: attack 2, a page has a link that is passed on"
    assert None not in reached.values()
    # In these scenarios, no untrusted value determines an argument.
    assert {role.scenario for role in tasks.roles} == {None}
    assert coverage.missing == ()
