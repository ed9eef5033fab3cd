"""A bundle diff finds all these loosened rules. The id of a difference depends only on the rules that differ."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.decision import Decision, Obligation, Reason, Verdict
from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.comparison import Difference, change_of
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair, rule_changes
from pdp.workbench.diff.reports import text_lines, verdict
from pdp.workbench.diff.result import BundleDiff
from pdp.workbench.diff.structure import structure_of
from pdp.workbench.gate.gate import NAMES, Gate, release_check
from pdp.workbench.neighbours.values import at
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support.command_line import pdp
from tests.support.payments import BUNDLE, EXAMPLE
from tests.workbench.diff.test_bundle_diff import CLEAR, SANCTIONS, compiled, made, manifest

pytestmark = pytest.mark.opa

OWN = f"own/{SANCTIONS}"
GRID = 600
BOTH = f"{CLEAR}\n\n_clear if"
DENIED = """# METADATA
# title: Nobody whom we do not deal with
# description: No.
# custom:
#   code: sanctions.person
deny contains reason.new(rego.metadata.rule(), {}) if input.subject.id in {"mallory", "eve"}

"""


def differences(opa: Path, old: Path, new: Path, count: int) -> list[Difference]:
    """Return the differences that `count` generated calls of the example's tools show."""
    generated = GeneratedCalls(BundlePair.of(opa, read_bundle(old), read_bundle(new)))
    with generated.comparison as comparison:
        return list(comparison.differences(islice(generated.calls(count * 3 // 2), count)))


def test_bundle_diff_does_not_apply_settings_of_the_new_bundle_to_the_old_bundle(tmp_path: Path, opa: Path) -> None:
    """The old bundle has no settings and denies. With the new bundle's settings, the old bundle would also allow."""
    old = compiled(tmp_path, opa, (OWN, CLEAR, "_clear if input.context.sanctions_status in data.settings.admitted"))
    bundle, settings = read_bundle(old), {"admitted": ["clear"]}
    new = tmp_path / "settings.tar.gz"
    data = {**bundle.data, "settings": settings}
    new.write_bytes(pack_bundle(release=3, wasm=bundle.wasm, data=data, modules=bundle.modules))
    suite = replace(load_suite(EXAMPLE / "scenarios.yaml"), data={"settings": settings}, scenarios=())

    found = bundle_diff(old, new, suites=[suite], most=GRID)

    assert [(group.change.direction, group.tools) for group in found.generated[:1]] == [("loosens", ("initiate_wire",))]


@pytest.mark.parametrize(
    ("condition", "where", "value"),
    [
        ('input.subject.id == "mallory"', ("subject", "id"), "mallory"),
        (
            '"x.y" in input.subject.properties.scopes',
            ("subject", "properties", "scopes"), ["payments.wire.initiate", "x.y"],
        ),
        ('input.subject.properties.act.sub == "agent:x"', ("subject", "properties", "act", "sub"), "agent:x"),
        ('object.get(input.context, "door", "") == "back"', ("context", "door"), "back"),
    ],
)  # fmt: skip
def test_bundle_diff_finds_a_second_exception_to_a_rule_that_denies(
    tmp_path: Path, opa: Path, condition: str, where: tuple[str, ...], value: Any
) -> None:
    new = compiled(tmp_path, opa, (OWN, CLEAR, f"{BOTH} {condition}"))

    loosening = [each for each in differences(opa, BUNDLE, new, GRID) if each.change.direction == "loosens"]

    assert {(each.change.old, each.change.new, each.call.tool) for each in loosening} == {
        (Verdict.DENY, Verdict.ALLOW, "initiate_wire")
    }
    assert value in [at(orjson.loads(each.call.new), where) for each in loosening]


def test_calls_generated_for_a_diff_contain_the_attributes_that_changed_modules_read(tmp_path: Path, opa: Path) -> None:
    edit = f'{CLEAR}\n\n_wrong if input.context.purpose\n\n_wrong if "grid.purpose" in input.subject.properties.scopes'
    text = (EXAMPLE / "policies" / SANCTIONS).read_text()
    deny = DENIED.replace('input.subject.id in {"mallory", "eve"}', "_wrong")
    new = compiled(tmp_path, opa, (OWN, text, f"{text.replace(CLEAR, edit)}\n{deny}"))

    # The new policy denies every call with a purpose. Only generated calls that still have their purpose show this
    # difference.
    assert {each.change.new for each in differences(opa, BUNDLE, new, 20)} == {Verdict.DENY}


def test_diff_finds_a_subject_removed_from_a_deny_list(tmp_path: Path, opa: Path) -> None:
    text = (EXAMPLE / "policies" / SANCTIONS).read_text()
    fewer = DENIED.replace('"mallory", "eve"', '"eve"')
    old, new = (
        compiled(tmp_path, opa, (OWN, text, f"{text}\n{each}"), name=name)
        for name, each in (("old", DENIED), ("new", fewer))
    )

    loosening = [each for each in differences(opa, old, new, GRID) if each.change.new is Verdict.ALLOW]
    assert {orjson.loads(each.call.new)["subject"]["id"] for each in loosening} == {"mallory"}
    assert {each.change.codes_removed for each in loosening} == {("sanctions.person",)}


def identity(opa: Path, condition: str, *more: str) -> str:
    """Return the id of a difference. The sanctions rule has this condition, and the rules `more` follow it."""
    bundle = read_bundle(BUNDLE)
    text = "\n\n".join((bundle.modules[SANCTIONS].replace(CLEAR, f"_clear if {condition}"), *more))
    new = replace(bundle, modules={**bundle.modules, SANCTIONS: text})
    return structure_of(BundlePair.of(opa, bundle, new)).id_of("decisions")


def test_id_of_a_bundle_difference_does_not_depend_on_the_formatting_of_rules(opa: Path) -> None:
    officer = 'input.context.sanctions_status in {"clear", "cleared_by_officer"}'
    wider = officer.replace('"clear", ', '"clear", "pending", ')
    ids = [identity(opa, *texts) for texts in ((officer,), (wider,), ("true",), (officer, "_more if input.a"))]

    assert len(set(ids)) == len(ids)
    turned = 'input.context.sanctions_status  in  {"cleared_by_officer", "clear"} # turned'
    assert identity(opa, turned) == ids[0]


def decided(verdict: Verdict, **duties: Any) -> Decision:
    obligations = tuple(Obligation(name, verdict, parameters) for name, parameters in duties.items())
    return Decision(verdict, (Reason("a.b", "words", {}),), obligations, "id", None, None)


LESS, MORE = {"set": {"amount": 100}}, {"set": {"amount": 900000}}


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (decided(Verdict.ALLOW, transform=LESS), decided(Verdict.ALLOW, transform=MORE), True),
        (decided(Verdict.ALLOW, transform=MORE), decided(Verdict.ALLOW, transform=LESS), True),
        (decided(Verdict.ALLOW, transform=LESS), decided(Verdict.ALLOW, mask=LESS), True),
        (decided(Verdict.ALLOW, transform=LESS, mask=LESS), decided(Verdict.ALLOW, mask=LESS), True),
        (decided(Verdict.ALLOW, mask=LESS), decided(Verdict.ALLOW, transform=LESS, mask=LESS), False),
        (decided(Verdict.STEP_UP, transform=LESS), decided(Verdict.STEP_UP, transform=MORE), False),
        (decided(Verdict.ALLOW, transform=LESS), decided(Verdict.DENY, transform=MORE), False),
    ],
)
def test_changed_obligation_parameters_count_as_loosening(old: Decision, new: Decision, *, counts: bool) -> None:
    change = change_of(old, new)

    assert change is not None
    assert (change.direction == "loosens") is counts


DUTY = """# METADATA
# title: Capped
# description: Capped.
# custom:
#   code: sanctions.capped
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"set": {"amount": 10}}} if {
	input.action.name == "initiate_wire"
}
"""


def test_raised_limit_counts_as_loosening(tmp_path: Path, opa: Path) -> None:
    text = (EXAMPLE / "policies" / SANCTIONS).read_text()
    old, new = (
        compiled(tmp_path, opa, (OWN, text, f"{text}\n{DUTY.replace('10', cap)}"), name=f"cap-{cap}")
        for cap in ("10", "90")
    )
    found = bundle_diff(old, new, most=300)

    (group,) = [item for item in found.generated if item.tools]
    assert group.call.endswith(": ALLOW as before, with a difference in transform")
    assert group.change.direction == "loosens"
    assert found.review[0].direction == "loosens"
    assert (found.as_json()["loosens"], found.fails("loosening"), list(found.loosenings())) == (True, True, [group.id])


def gate_reasons(bundle: Path, last: Path) -> tuple[str, ...]:
    suite = load_suite(EXAMPLE / "scenarios.yaml")
    skip = [name for name in NAMES if name != "loosening"]
    checked = release_check(Gate(bundle, [suite], last=last, skip=skip, generate=300))
    return tuple(next(item for item in checked.checks if item.name == "loosening").reasons)


def many(count: int, value: str) -> str:
    """Return rules that read `count` attributes and deny none of the example's calls."""
    return "".join(f'_odd if input.context.zz{at:03} == "{value}"\n\n' for at in range(count))


def test_bundle_diff_reports_rule_changes_that_no_generated_call_reaches_as_unseen(tmp_path: Path) -> None:
    bundle = read_bundle(BUNDLE)
    text = bundle.modules[SANCTIONS]
    files = []
    for name, value in (("old", "a"), ("new", "b")):
        modules = {**bundle.modules, SANCTIONS: f"{text}\n{many(60, value)}"}
        files.append(tmp_path / name)
        files[-1].write_bytes(pack_bundle(release=2, wasm=bundle.wasm, data=bundle.data, modules=modules))

    found = bundle_diff(*files, most=60)

    unseen = list(found.unseen().values())
    left_out = [
        what for what in unseen if what.endswith(": a changed rule reads this field, but the limit of calls omits it")
    ]
    assert 10 < len(left_out) < 60
    assert " attributes that the limit of calls left out: context." in found.not_covered()[-1]
    assert f"{len(unseen)} places where a loosening would not be seen" in verdict(found)


def test_release_gate_reports_a_tool_for_which_no_generated_call_is_allowed(tmp_path: Path) -> None:
    def closed(version: str) -> Callable[[Any], None]:
        def change(document: Any) -> None:
            document["manifest_version"] = version
            document["tools"]["lookup_beneficiary"]["release"] = {"gate": "failed", "drift": "ok"}

        return change

    old, new = (
        made(tmp_path / version, manifest=manifest(closed(version)), settings={"version": version}, release=release)
        for release, version in enumerate(("2026.07.2", "2026.07.3"), start=2)
    )
    found = bundle_diff(old, new, most=300)

    assert list(found.unseen().values()) == ["lookup_beneficiary: no call was found that is ALLOW or STEP_UP"]
    (name,) = found.unseen()
    assert "unseen    lookup_beneficiary: no call was found that is ALLOW or STEP_UP." in list(text_lines(found))
    assert gate_reasons(new, old) == (
        f"{name} is not explained: lookup_beneficiary: no call was found that is ALLOW or STEP_UP",
    )
    # If the two bundles are the same, the diff reports no change that no call shows.
    assert bundle_diff(old, old, most=0).unseen() == {}


# Each item has two bodies of a rule whose expressions have different orders. In SAME, the order has no meaning.
SAME = {
    "conditions": ("input.a\ninput.b", "input.b\ninput.a"),
    "comprehension": ("count([x | input.a; x := input.b]) > 0", "count([x | x := input.b; input.a]) > 0"),
    "every": ("every x in input.xs { x > 1; x < 9 }", "every x in input.xs { x < 9; x > 1 }"),
    "wildcards": ("input.a[_]\ninput.b[_] == input.c[_]", "input.b[_] == input.c[_]\ninput.a[_]"),
    "set": ('input.a in {"x", "y"}', 'input.a in {"y", "x"}'),
    "object": ('input.a == {"x": 1, "y": 2}', 'input.a == {"y": 2, "x": 1}'),
}
OTHER = {
    "declared": ("some x in input.xs\ny := x.z\ny > 1", "some x in input.xs\n1 < 2\ny := x.z\ny > 1"),
    "else": ("input.a\n} else := 2 if {\ninput.b", "input.b\n} else := 2 if {\ninput.a"),
    "with": ("input.a with input.b as 1\ninput.c", "input.a\ninput.c with input.b as 1"),
    "rule_name": ("y := [z | z := _clear]; _clear := 1; y[_clear]", "_clear := 1; y := [z | z := _clear]; y[_clear]"),
    "list": ("input.a == [1, 2]", "input.a == [2, 1]"),
}


def test_bundle_diff_reports_a_reordered_rule_body_only_if_the_order_matters(opa: Path) -> None:
    bundle = read_bundle(BUNDLE)
    sides = []
    for side in (0, 1):
        rules = [f"_{name} if {{\n{bodies[side]}\n}}" for name, bodies in {**SAME, **OTHER}.items()]
        braces = ("_braces if input.a", "_braces if {\ninput.a }")[side]
        text = "\n\n".join((bundle.modules[SANCTIONS], *rules, braces))
        sides.append(replace(bundle, modules={**bundle.modules, SANCTIONS: text}))

    changed = {
        change.name.removeprefix("custom.concerns.sanctions ") for change in rule_changes(BundlePair.of(opa, *sides))
    }
    assert changed == {f"_{name}" for name in OTHER}


def test_bundle_diff_without_opa_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDP_OPA", raising=False)
    for name in ("PATH", "HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    done = pdp("bundle", "diff", BUNDLE, BUNDLE)

    assert (done.code, done.err) == (
        2,
        (
            "error: comparing bundles needs Open Policy Agent 1.22.4, which is not installed\n"
            "    hint: run: pdp opa install\n"
        ),
    )


def test_bundle_diff_without_calls_reports_that_no_calls_were_decided(tmp_path: Path) -> None:
    def lenient(document: Any) -> None:
        document["tools"]["initiate_wire"]["scopes"] = []

    new = made(tmp_path / "new.tar.gz", manifest=manifest(lenient))
    same = pdp("bundle", "diff", BUNDLE, BUNDLE, "--generate", 0)
    other: BundleDiff = bundle_diff(BUNDLE, new, most=0)

    assert same.code == 0
    assert same.out.splitlines()[0].endswith(": no call was decided, so decisions were not compared")
    assert verdict(other) == "no call was decided, so decisions were not compared; 1 change in structure loosens"
    assert list(other.unseen().values()) == ["no call was decided, neither known nor generated"]
    refused = pdp("bundle", "diff", BUNDLE, new, "--generate", 0, "--fail-on", "loosening")
    assert (refused.code, refused.out, refused.err) == (
        2, "",
        (
            "error: --fail-on loosening has no effect: no calls were compared\n"
            "    hint: give calls with --scenarios or --log, or generate them with --generate\n"
        ),
    )  # fmt: skip
    scenarios = EXAMPLE / "scenarios.yaml"
    line = ["bundle", "diff", BUNDLE, BUNDLE, "--generate", 0, "--fail-on", "any", "--scenarios", scenarios]
    assert pdp(*line).code == 0
