"""`pdp bundle diff` compares the contents of two bundles, and their decisions on known and generated calls."""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.engine.protocol import DECISION
from pdp.errors import FileFaultsError
from pdp.json import canonical, digest
from pdp.opa.build import compile_bundle
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.known import read_log
from pdp.workbench.diff.policies import BundlePair, rule_changes
from pdp.workbench.diff.result import BundleDiff
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support import ROOT
from tests.support.payments import BUNDLE, EXAMPLE, effective

pytestmark = pytest.mark.opa

SANCTIONS = "custom/concerns/sanctions/sanctions.rego"
SMALL = 400
"""The number of generated calls. It is enough to change the fields that matter of a call of the example's tools."""


def made(file: Path, *, manifest: Any = None, release: int = 2, **data: Any) -> Path:
    """Write the example's bundle with another manifest or other data, but the same compiled policies."""
    bundle = read_bundle(BUNDLE)
    document = effective().document if manifest is None else manifest
    whole = {**bundle.data, "manifests": {digest(canonical(document)): document}, **data}
    file.write_bytes(pack_bundle(release=release, wasm=bundle.wasm, data=whole, modules=bundle.modules))
    return file


def manifest(change: Callable[[Any], None]) -> Any:
    """Return the effective manifest of the example after `change` was applied to it."""
    document = deepcopy(effective().document)
    change(document)
    return document


def compiled(folder: Path, opa: Path, *edits: tuple[str, str, str], name: str = "new") -> Path:
    """Build the example's bundle from edited sources. Each edit is a path, the text to replace, and the new text."""
    sources = folder / name
    shutil.copytree(ROOT / "policies", sources / "policies", ignore=shutil.ignore_patterns("checks"))
    shutil.copytree(EXAMPLE / "policies", sources / "own")
    for path, text, other in edits:
        file = sources / path
        content = file.read_text()
        assert content.count(text) == 1
        file.write_text(content.replace(text, other))
    packed = compile_bundle(
        policies=[sources / "policies", sources / "own"],
        release=2,
        opa=opa,
        manifests={effective().digest: effective().document},
    )
    file = folder / f"{name}.tar.gz"
    file.write_bytes(packed)
    return file


CLEAR = '_clear if input.context.sanctions_status == "clear"'


@pytest.fixture(scope="module")
def unscreened(tmp_path_factory: pytest.TempPathFactory, opa: Path) -> Path:
    """Build the example's bundle with a policy that also accepts beneficiaries who were not screened."""
    other = '_clear if input.context.sanctions_status in {"clear", "not_screened"}'
    return compiled(tmp_path_factory.mktemp("unscreened"), opa, (f"own/{SANCTIONS}", CLEAR, other))


@pytest.fixture(scope="module")
def found(unscreened: Path) -> BundleDiff:
    """Return the difference between the example's bundle and the bundle `unscreened`."""
    return bundle_diff(BUNDLE, unscreened, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=SMALL)


def line_of(text: str) -> int:
    return (EXAMPLE / "policies" / SANCTIONS).read_text().splitlines().index(text) + 1


def test_diff_of_a_bundle_with_itself_is_empty() -> None:
    same = bundle_diff(BUNDLE, BUNDLE, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=SMALL)

    assert (same.differs, same.as_json()["loosens"], same.groups, same.loosenings()) == (False, False, (), {})
    assert [same.fails(when) for when in (None, "loosening", "any")] == [False, False, False]
    assert (same.structure.rules, same.structure.data) == ((), ())
    assert same.structure.manifests == ()
    assert (same.known.scenarios, same.extent.requests) == (84, SMALL)
    assert same.extent.never_allowed == []


def test_bundle_diff_shows_a_weakened_rule_condition_with_an_affected_call(found: BundleDiff) -> None:
    group = next(item for item in found.generated if item.tools)

    assert "sanctions_status not_screened" in group.call
    assert group.call.startswith("initiate_wire, ")
    assert group.call.endswith(": DENY sanctions.not_clear -> ALLOW")
    assert (group.change.direction, group.tools) == ("loosens", ("initiate_wire",))
    assert (group.change.codes_removed, group.change.codes_added) == (
        ("sanctions.not_clear",), ("effects.gate_satisfied", "risk.acceptable"),
    )  # fmt: skip
    assert group.as_json()["witness"]["context"]["sanctions_status"] == "not_screened"
    assert (found.as_json()["loosens"], found.fails("loosening"), found.fails("any")) == (True, True, True)


def test_diff_shows_the_scenario_calls_that_are_decided_differently(found: BundleDiff) -> None:
    (group,) = found.known.groups

    assert (group.change.old, group.change.new, group.tools) == ("DENY", "ALLOW", ("initiate_wire",))
    assert [source.split(" ", 1)[1] for source in group.sources] == [
        "a wire to a beneficiary who has not been screened is denied"
    ]
    assert found.known.scenarios == len(load_suite(EXAMPLE / "scenarios.yaml").scenarios)
    # Generated calls show the same difference as the scenarios, so one explanation covers both.
    assert group.id in {item.id for item in found.generated}


def test_diff_reports_a_changed_helper_rule_with_its_locations(found: BundleDiff, unscreened: Path) -> None:
    place = f"{SANCTIONS}:{line_of(CLEAR)}"

    assert [(item.direction, item.line, item.where) for item in found.structure.rules] == [
        (
            "unclear", "custom.concerns.sanctions _clear: changed; decisions show its effect",
            f"{BUNDLE}!{place}, {unscreened}!{place}",
        )
    ]  # fmt: skip


def test_diff_ignores_the_formatting_of_policies(tmp_path: Path, opa: Path) -> None:
    text = (EXAMPLE / "policies" / SANCTIONS).read_text()
    start = text.index("# METADATA", 10)
    head, rules = text[:start], text[start:].replace(CLEAR, "")
    moved = f"{head}\n# What is clear.\n{CLEAR.replace(' if ', '   if   ')} # so it is\n\n{rules}"
    lookup = ("\tis_string(input.context.looked_up_beneficiary)\n", '\tinput.context.looked_up_beneficiary != ""\n')
    conditions = "own/custom/concerns/beneficiary/beneficiary.rego", "".join(lookup), "".join(reversed(lookup))
    other = compiled(tmp_path, opa, (f"own/{SANCTIONS}", text, moved), conditions)

    same = bundle_diff(BUNDLE, other, most=SMALL)

    assert read_bundle(other).revision != read_bundle(BUNDLE).revision
    assert (same.differs, same.groups, same.structure.rules) == (False, (), ())


def test_bundle_diff_says_whether_added_and_removed_rules_loosen_or_tighten(opa: Path) -> None:
    old = read_bundle(BUNDLE)
    text = old.modules[SANCTIONS]
    without = {path: each for path, each in old.modules.items() if path != SANCTIONS}
    reworded = {**old.modules, SANCTIONS: text.replace("# title: ", "# title: Another ")}

    def directions(modules: dict[str, str]) -> list[tuple[str, str, bool]]:
        changes = rule_changes(BundlePair.of(opa, old, replace(old, modules=modules)))
        return [(item.direction, item.name, item.new is None) for item in changes]

    assert directions(without) == [
        ("unclear", "custom.concerns.sanctions _clear", True),
        ("unclear", "custom.concerns.sanctions imports", True),
        ("loosens", "sanctions.not_clear", True),
    ]
    assert directions(reworded) == []
    back = rule_changes(BundlePair.of(opa, replace(old, modules=without), old))
    assert [item.direction for item in back if item.name == "sanctions.not_clear"] == ["tightens"]


def test_bundle_diff_says_whether_changed_scopes_and_limits_loosen_or_tighten(tmp_path: Path) -> None:
    def lenient(document: Any) -> None:
        document["manifest_version"] = "2026.07.2"
        document["tools"]["lookup_beneficiary"]["scopes"] = ["payments.lookup", "payments.more"]
        document["tools"]["initiate_wire"]["limits"] = []
        document["tools"]["initiate_wire"]["approval"]["unless_within_limits"] = True

    strict = made(tmp_path / "old.tar.gz")
    other = bundle_diff(strict, made(tmp_path / "new.tar.gz", manifest=manifest(lenient)), most=900)

    assert [(item.direction, item.line) for item in other.structure.manifests] == [
        ("unclear", "manifest: 2026.07.1 became 2026.07.2"),
        ("loosens", "initiate_wire: limits: removed wire.auto_approved amount"),
        ("tightens", "lookup_beneficiary: scopes: added payments.more"),
    ]
    denied = [item for item in other.generated if (item.change.old, item.change.new) == ("ALLOW", "DENY")]
    assert "scopes.missing" in {code for item in denied for code in item.change.codes_added}
    assert {item.tools for item in other.generated} <= {("initiate_wire",), ("lookup_beneficiary",)}
    assert other.loosenings()


def test_diff_shows_added_and_removed_tools_with_reproducible_calls(tmp_path: Path) -> None:
    def other(document: Any) -> None:
        document["manifest_version"] = "2026.08.1"
        entry = document["tools"].pop("lookup_beneficiary")
        document["tools"]["look_up_again"] = {**entry, "name": "look_up_again", "pdp_action": "look_up_again"}

    files = made(tmp_path / "o"), made(tmp_path / "n", manifest=manifest(other))
    found, again = (bundle_diff(*files, most=SMALL) for _ in range(2))

    changes = [(group.change.old, group.change.new, group.tools) for group in found.generated]
    assert {(old, new, tools) for old, new, tools in changes if old != new} == {
        ("DENY", "ALLOW", ("look_up_again",)), ("ALLOW", "DENY", ("lookup_beneficiary",)),
    }  # fmt: skip
    assert (found.extent.requests, found.extent.cut) == (SMALL, True)
    assert json.dumps(found.as_json()) == json.dumps(again.as_json())


def test_diff_reads_both_formats_of_decision_logs(tmp_path: Path, unscreened: Path, found: BundleDiff) -> None:
    request = orjson.loads(found.known.groups[0].smallest.call.new)
    lines = [
        {"input": request},
        {"input": request},
        {"decision_id": "1", "path": "authz/decision", "input": request, "result": {}},
        {"path": "authz/plan", "input": {"steps": []}},
        {"path": "authz/decision", "input": {}, "erased": ["/input/context"]},
        {"level": "info", "msg": "Server initialized."},
    ]
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n\n")

    log = read_log(file)
    decided = bundle_diff(BUNDLE, unscreened, logs=[log], most=0)

    assert (log.skipped, len(log.requests)) == (3, 1)
    assert [(item.change, item.sources) for item in decided.groups] == [(found.known.groups[0].change, (f"{file}:1",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(b"nothing", "not JSON: Expecting value: line 1 column 1 (char 0)", id="no JSON"),
        pytest.param(b"[]", "not an object", id="no object"),
        pytest.param(b'{"input": 1, "input": 2}', "duplicate key in an object", id="twice"),
        pytest.param(b'{"input": NaN}', "input: nan is not a number of JSON", id="not a number"),
    ],
)
def test_faulty_decision_log_line_is_reported_with_its_location(tmp_path: Path, line: bytes, message: str) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b'{"input": {}}\n' + line)

    with pytest.raises(FileFaultsError) as caught:
        read_log(file)

    assert str(caught.value) == f'{file}:2:1: {message}\n    hint: write one {{"input": REQUEST}} per line'


def test_bundle_diff_decides_malformed_requests_of_a_decision_log(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b'{"input": 7}\n{"input": {"action": []}}\n{"input": null}\n')

    assert bundle_diff(BUNDLE, BUNDLE, logs=[read_log(file)], most=0).known.calls == 3


def test_bundle_diff_decides_generated_calls_only_when_needed(opa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = read_bundle(BUNDLE)
    asked: set[str] = set()
    generated = GeneratedCalls(BundlePair.of(opa, bundle, bundle))
    with generated.comparison as comparison:
        engine, _ = comparison.engines
        evaluate = engine.evaluate

        def noted(body: bytes, document: str = DECISION) -> bytes:
            asked.add(orjson.loads(body)["action"]["properties"]["tool"])
            return evaluate(body, document)

        monkeypatch.setattr(engine, "evaluate", noted)
        taken = {call.tool for call in generated.calls(40)}
    assert asked == taken
    assert len(taken) < generated.extent.entries
