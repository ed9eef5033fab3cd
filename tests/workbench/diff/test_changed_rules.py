"""The bundle diff shows every back door in changed rules by a call or reports the rule. Renamed rules are ignored."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import read_bundle
from pdp.json import canonical
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.causes.attribution import Attribution
from pdp.workbench.diff.causes.exercise import not_shown
from pdp.workbench.diff.policies import BundlePair, rule_changes
from pdp.workbench.diff.reports import markdown, verdict
from pdp.workbench.neighbours.bases import called_tools, complete_call
from pdp.workbench.neighbours.vocabulary import Vocabulary
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support.payments import BUNDLE, EXAMPLE
from tests.workbench.diff.test_bundle_diff import CLEAR, SANCTIONS, compiled

pytestmark = [pytest.mark.opa, pytest.mark.process]

OWN = f"own/{SANCTIONS}"
ARGUMENTS = "input.context.arguments"
IMPORT = "import data.authz.lib.reason"
CALLS = 1500

# Each condition is a back door, because in certain calls it accepts a beneficiary whose screening is not clear.
SHOWN = {
    "one amount": f"{ARGUMENTS}.amount == 13.37",
    "a magic word": f'is_string({ARGUMENTS}.reference); contains({ARGUMENTS}.reference, "xyzzy")',
    "texts alike": f"input.context.purpose == {ARGUMENTS}.reference",
    "texts that others need": f"input.subject.id == {ARGUMENTS}.beneficiary_id",
    "numbers alike": f"{ARGUMENTS}.amount == input.context.attempt",
    "three constants": (
        f'input.subject.id == "clerk"; input.context.purpose == "month.end"; number.at_most({ARGUMENTS}.amount, 17.5)'
    ),
    "a constant from parts": 'input.subject.id == concat("", ["ev", "e-", "second"])',
    "a function": "_friend(input.subject.id)",
    "a remainder": f"is_number({ARGUMENTS}.amount); {ARGUMENTS}.amount % 100 == 37",
}
HIDDEN = {
    "a part of a text": 'is_string(input.subject.id); indexof(input.subject.id, "llam") == 2',
    "a number beyond 64 bits": f"{ARGUMENTS}.amount == 99999999999999999999999",
}
HELPERS = '_second := "second"\n\n_friend(name) if {\n\tis_string(name)\n\ttrim_space(name) in {"carol", "dan"}\n}'


def with_doors(folder: Path, opa: Path, *doors: str) -> Path:
    """Build the example's bundle with these conditions as additional exceptions to the sanctions rule."""
    rules = "\n\n".join((CLEAR, *(f"_clear if {{ {door} }}" for door in doors), HELPERS))
    return compiled(folder, opa, (OWN, CLEAR, rules), (OWN, IMPORT, f"import data.authz.lib.number\n{IMPORT}"))


def test_bundle_diff_shows_a_call_for_every_back_door_or_reports_the_changed_rule(tmp_path: Path, opa: Path) -> None:
    new = with_doors(tmp_path, opa, *SHOWN.values(), *HIDDEN.values())

    found = bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)

    assert found.loosenings()
    reported = {f"`_clear if {{ {door} }}`: no call shows the effect of this rule" for door in HIDDEN.values()}
    assert reported <= {line.partition(": ")[2] for line in found.not_shown}
    places = {name: what for name, what in found.unseen().items() if "no call shows" in what}
    assert len(places) == len(found.not_shown)
    assert f"{len(found.unseen())} places where a loosening would not be seen" in verdict(found)
    # The Markdown report begins with the changes that no call shows, and contains the ids of these changes.
    first, _ = markdown(found).split("What was compared")
    assert [name for name in (*places, *found.loosenings()) if f"`{name}`" not in first] == []


@pytest.mark.parametrize(
    ("approval", "missed"),
    [pytest.param(None, 0, id="admitted"), pytest.param({}, 1, id="denied for something else")],
)
def test_bundle_diff_reports_no_loosening_for_a_call_that_both_bundles_deny(
    opa: Path, approval: Any, missed: int
) -> None:
    bundle = read_bundle(BUNDLE)
    (digest, document), *_ = bundle.data["manifests"].items()
    tool = next(tool for tool in called_tools(document, digest) if tool.name == "initiate_wire")
    call = complete_call(tool, Vocabulary(), [], {})
    call["context"] |= {"door": "back", "looked_up_beneficiary": "x", "approval": approval}
    call["context"]["arguments"]["beneficiary_id"] = "x"
    door = '_clear if input.context.door == "back"'
    opened = {**bundle.modules, SANCTIONS: f"{bundle.modules[SANCTIONS]}\n{door}\n"}

    pair = BundlePair.of(opa, bundle, replace(bundle, modules=opened))
    with Attribution(pair, (bundle.data, bundle.data), (), timeout=30) as attribution:
        found = not_shown(pair, attribution, [canonical(call)])

    ours = f"`{door}`: no call shows the effect of this rule"
    assert [line.partition(": ")[2] for line in found if door in line] == [ours] * missed


RENAMED = [f"_part_{number:02}" for number in range(40)]


def changes(opa: Path, old: str, new: str) -> list[str]:
    bundle = read_bundle(BUNDLE)
    sides = (
        replace(bundle, modules={**bundle.modules, SANCTIONS: f"{bundle.modules[SANCTIONS]}\n{text}"})
        for text in (old, new)
    )
    return [change.name for change in rule_changes(BundlePair.of(opa, *sides))]


def chained(names: list[str], variable: str, *more: str) -> str:
    """Return helper rules. Each rule uses the next rule, so each name occurs in two rules."""
    rules = [
        f'{name} if {{\n\t{variable} := input.context.x{number}\n\t{variable} != "{number}"\n\t{following}\n}}'
        for number, (name, following) in enumerate(zip(names, [*names[1:], "_clear"], strict=True))
    ]
    return "\n\n".join((*rules, *more))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(chained([f"_piece_{number}" for number in range(40)], "value"), [], id="renamed"),
        pytest.param(chained(RENAMED, "vertex"), [], id="a variable renamed"),
        pytest.param(
            chained([f"_piece_{number}" for number in range(40)], "value", '_clear if input.subject.id == "mallory"'),
            ["custom.concerns.sanctions _clear"], id="with an exemption among them",
        ),
    ],
)  # fmt: skip
def test_diff_ignores_renamed_rules_but_reports_a_new_rule(opa: Path, text: str, expected: list[str]) -> None:
    assert changes(opa, chained(RENAMED, "value"), text) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("_a := 1\n\n_b := 2", "_a := 2\n\n_b := 1", id="names that are exchanged"),
        pytest.param("_a if input.x\n\n_c if _a", "_b if input.y\n\n_c if _b", id="another helper with another name"),
        pytest.param(
            "_a if input.x\n\n_c if data.custom.concerns.sanctions[input.y]",
            "_b if input.x\n\n_c if data.custom.concerns.sanctions[input.y]", id="a name that a reference computes",
        ),
        pytest.param(
            "_a if {\n\tx := input.x\n\ty := input.y\n\tx < y\n}",
            "_a if {\n\tx := input.x\n\ty := input.y\n\ty < x\n}", id="variables that are exchanged in one place",
        ),
        pytest.param(
            "_a if count([x | some x in input.x]) > 0", "_a if count([x | some y in input.x; x := 1]) > 0",
            id="another variable",
        ),
        pytest.param(
            chained(RENAMED, "value"),
            chained([f"_piece_{number}" for number in range(40)], "value").replace(
                '!= "17"', '!= "17"\n\tinput.subject.id != "clerk-7"'
            ),
            id="renamed, and one with an exemption",
        ),
    ],
)  # fmt: skip
def test_diff_reports_a_rule_with_a_changed_meaning(opa: Path, old: str, new: str) -> None:
    assert changes(opa, old, new) != []
