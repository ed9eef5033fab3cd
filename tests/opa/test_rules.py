"""Rules are found in the text of policies without OPA, in the baseline and in malformed texts."""

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


def test_all_rules_of_a_module_are_found() -> None:
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


def test_sites_by_code_leaves_out_rules_without_a_reason_code() -> None:
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
def test_rego_text_without_concern_rules_has_no_rule_locations(text: str) -> None:
    assert of(text) == ()


def test_indented_rego_rule_has_the_metadata_written_above_the_rule() -> None:
    text = "package authz.concerns.a\n# METADATA\n# custom: {code: a.b}\n  deny contains 1 if input.x"
    assert [(one.code, one.line, one.text) for one in of(text)] == [("a.b", 4, "deny contains 1 if input.x")]


def test_rego_unit_tests_are_ignored() -> None:
    assert of(HOURS, "custom/concerns/hours/hours_test.rego") == ()


_PIECES = st.sampled_from([*HOURS.splitlines(keepends=True), "{", "}", "`", '"', "\\", "#", "\t", "\x00", "\u2028"])


@settings(max_examples=100)
@given(st.lists(_PIECES | st.text(max_size=20), max_size=30).map("".join))
def test_arbitrary_text_is_read_without_error(text: str) -> None:
    lines = text.count("\n") + 1
    for site in of("package authz.concerns.a\n" + text):
        assert 2 <= site.line <= site.last_line <= lines + 1


@pytest.mark.opa
def test_baseline_codes_equal_those_read_by_opa(opa: Path) -> None:
    """The codes are compared with the codes that OPA itself reads from METADATA comments."""
    baseline = baseline_policies_path()
    expected = set()
    for path, module in collect(baseline, [baseline]).items():
        done = subprocess.run([opa, "inspect", "-a", "-f", "json", module.file], capture_output=True, check=True)
        for one in orjson.loads(done.stdout).get("annotations", []):
            code = one["annotations"].get("custom", {}).get("code")
            # Planning rules decide on plans, not on calls, so planning rules belong to no concern.
            if code is not None and not code.startswith("planning."):
                expected.add((code, path, one["location"]["row"], one["annotations"]["title"]))
    sites = rule_sites(collect(baseline, [baseline]))
    assert {(one.code, one.module, one.line, one.title) for one in sites if one.code is not None} == expected
    assert len(expected) > 20
