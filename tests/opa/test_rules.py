"""Where rules stand, read without OPA: the baseline's whole list, and text that is anything but in order."""

import subprocess
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.opa.modules import Module, baseline_policies_path, collect
from pdp.opa.rules import RuleSite, rule_sites, sites_by_code

HOURS = Path(__file__).with_name("hours.rego").read_text()


def of(text: str, path: str = "custom/concerns/hours/hours.rego") -> tuple[RuleSite, ...]:
    return rule_sites({path: Module(Path("mine") / path, text, custom=True)})


def test_a_module_with_everything_in_it() -> None:
    file = str(Path("mine/custom/concerns/hours/hours.rego"))
    shown = [
        (one.code, one.concern, one.part, one.line, one.last_line, one.title, one.description, one.unreached)
        for one in of(HOURS)
    ]
    assert shown == [
        ("hours.closed", "hours", "step_up", 17, 19, "Desk closed", "The desk is closed.", "nobody calls"),
        (None, "hours", "deny", 23, 23, "", "", None),
        (None, "hours", "allow", 28, 28, "", "", None),
        ("hours.logged", "hours", "obligations", 37, 42, "", "", None),
        ("hours.found", "hours", "step_up", 46, 46, "", "", None),
    ]
    assert {one.file for one in of(HOURS)} == {file}
    assert [one.obligation for one in of(HOURS)] == [None, None, None, "log_level", None]


def test_sites_by_code_leaves_out_those_without() -> None:
    assert {code: [one.line for one in found] for code, found in sites_by_code(of(HOURS)).items()} == {
        "hours.closed": [17],
        "hours.found": [46],
        "hours.logged": [37],
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "package",
        "# METADATA",
        "# METADATA\n# custom: {code: a.b}",
        "# METADATA\n# custom: {code: a.b}\npackage authz.concerns.a\nx := 1",
        "package authz.concerns.a\n# METADATA\n# date: 2026-99-99\n\n\n}}}\n",
        "package authz.lib.x\n# METADATA\n# custom: {code: x.y}\nx := 1",
        "package authz.concerns.a.b\n# METADATA\n# custom: {code: x.y}\ndeny contains 1",
    ],
)
def test_text_without_rules_of_a_concern_has_none(text: str) -> None:
    assert of(text) == ()


def test_a_rule_that_is_indented_belongs_to_the_metadata_above_it() -> None:
    text = "package authz.concerns.a\n# METADATA\n# custom: {code: a.b}\n  deny contains 1 if input.x"
    assert [(one.code, one.line, one.text) for one in of(text)] == [("a.b", 4, "deny contains 1 if input.x")]


def test_tests_of_rego_are_no_rules() -> None:
    assert of(HOURS, "custom/concerns/hours/hours_test.rego") == ()


_PIECES = st.sampled_from([*HOURS.splitlines(keepends=True), "{", "}", "`", '"', "\\", "#", "\t", "\x00", "\u2028"])


@settings(max_examples=100)
@given(st.lists(_PIECES | st.text(max_size=20), max_size=30).map("".join))
def test_whatever_the_text_it_is_read(text: str) -> None:
    lines = text.count("\n") + 1
    for site in of("package authz.concerns.a\n" + text):
        assert 2 <= site.line <= site.last_line <= lines + 1


@pytest.mark.opa
def test_the_baselines_codes_are_those_that_opa_reads(opa: Path) -> None:
    """OPA's own reader of METADATA is the oracle."""
    baseline = baseline_policies_path()
    expected = set()
    for path, module in collect(baseline, [baseline]).items():
        done = subprocess.run([opa, "inspect", "-a", "-f", "json", module.file], capture_output=True, check=True)
        for one in orjson.loads(done.stdout).get("annotations", []):
            code = one["annotations"].get("custom", {}).get("code")
            # Plans have a document of their own, which no call's decision asks for.
            if code is not None and not code.startswith("planning."):
                expected.add((code, path, one["location"]["row"], one["annotations"]["title"]))
    sites = rule_sites(collect(baseline, [baseline]))
    assert {(one.code, one.module, one.line, one.title) for one in sites if one.code is not None} == expected
    assert len(expected) > 20
