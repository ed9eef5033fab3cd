"""Each difference in decisions is listed under the changes that move it, and only there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.json import canonical, digest
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.causes.changes import changes_between, edition, rule_text
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.reports import text_lines
from pdp.workbench.diff.result import BundleDiff, ReviewItem
from pdp.workbench.diff.structure import data_changes, structure_of
from pdp.workbench.scenarios.files.suite import load_suite
from tests.support.command_line import pdp
from tests.support.payments import BUNDLE, EXAMPLE
from tests.workbench.diff.test_bundle_diff import CLEAR, SANCTIONS, compiled, manifest

pytestmark = pytest.mark.opa

OWN = f"own/{SANCTIONS}"
CALLS = 400
NIGHT = """
# METADATA
# title: No wire for the tax office
# description: Wires for this purpose are made by hand.
# custom:
#   code: sanctions.by_hand
deny contains reason.new(rego.metadata.rule(), {}) if input.context.purpose == "taxes"
"""


def changed(folder: Path, opa: Path, rule: str, change: Callable[[Any], None], **data: Any) -> Path:
    """Build the example's bundle with another rule in place of `CLEAR`, another manifest and more data."""
    bundle = read_bundle(compiled(folder, opa, (OWN, CLEAR, rule)))
    document = manifest(change)
    whole = {**bundle.data, "manifests": {digest(canonical(document)): document}, **data}
    file = folder / "changed.tar.gz"
    file.write_bytes(pack_bundle(release=2, wasm=bundle.wasm, data=whole, modules=bundle.modules))
    return file


def wider_scope(document: Any) -> None:
    document["tools"]["initiate_wire"]["scopes"] = ["payments.lookup"]


def calls_below(diff: BundleDiff, words: str) -> dict[str, tuple[str, ...]]:
    """Return the calls of the only review item with these words, each with the changes that it needs as well."""
    (item,) = (item for item in diff.review if words in item.sentence)
    return dict(calls(item))


def calls(item: ReviewItem) -> list[tuple[str, tuple[str, ...]]]:
    return [(caused.call, caused.only_with) for caused in item.calls]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, opa: Path) -> BundleDiff:
    """Return the diff of a bundle with a wider scope, a weaker condition, a new denial and an unused setting."""
    rule = f'_clear if input.context.sanctions_status in {{"clear", "not_screened"}}\n{NIGHT}'
    folder = tmp_path_factory.mktemp("several")
    new = changed(folder, opa, rule, wider_scope, settings={"hours": 8})
    return bundle_diff(BUNDLE, new, suites=[load_suite(EXAMPLE / "scenarios.yaml")], most=CALLS)


def test_each_call_is_listed_only_under_the_changes_that_move_it(several: BundleDiff) -> None:
    scope, helper, denial = (
        calls_below(several, words) for words in ("requires payments.lookup", "_clear", "sanctions.by_hand")
    )

    alone = [{call for call, others in calls.items() if not others} for calls in (scope, helper, denial)]
    loosening = [{call for call in calls if call.endswith("-> ALLOW")} for calls in alone]
    assert all("scopes.missing" in call or "exceeds_agent" in call for call in loosening[0])
    assert all("DENY sanctions.not_clear -> ALLOW" in call for call in loosening[1])
    assert all(loosening[:2])
    assert not loosening[2]
    assert all("purpose taxes" in call for call in alone[2])
    assert calls_below(several, "settings is {hours: 8}") == {}
    assert [item.direction for item in several.review if "sanctions.by_hand" in item.sentence] == ["tightens"]


FLAGS = """_clear if count([flag | some flag in data.settings.flags; flag]) > 1

_clear if input.subject.id == "mallory"
"""


def test_changes_that_only_together_move_a_call_are_listed_together(tmp_path: Path, opa: Path) -> None:
    old = changed(tmp_path / "old", opa, f"{CLEAR}\n\n{FLAGS}", lambda _: None, settings={"flags": {}})
    bundle = read_bundle(old)
    new = tmp_path / "new.tar.gz"
    data = {**bundle.data, "settings": {"flags": {"a": True, "b": True, "c": True}}}
    new.write_bytes(pack_bundle(release=3, wasm=bundle.wasm, data=data, modules=bundle.modules))

    diff = bundle_diff(old, new, most=CALLS)

    # Two flags are needed, so neither one flag more nor one flag less makes a difference.
    flags = {item.sentence: item for item in diff.review if item.sentence.startswith("settings.flags.")}
    listed = [sentence for sentence, item in flags.items() if item.calls]
    assert len(flags) == 3
    assert len(listed) == 2
    assert {others for item in flags.values() for _, others in calls(item)} == {(each,) for each in listed}
    assert sum(line.strip().startswith("only together with: settings.flags.") for line in text_lines(diff)) >= 2


def test_what_was_found_before_opa_timed_out_is_kept(
    tmp_path: Path, opa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "opa"
    slow.write_text(f'#!/bin/sh\n[ "$1" = eval ] && exec sleep 20\nexec {opa.resolve()} "$@"\n')
    slow.chmod(0o755)
    new = changed(tmp_path, opa, f"{CLEAR}\n\n_clear if input.subject.id", wider_scope)
    monkeypatch.setenv("PDP_OPA", str(slow))

    done = pdp("bundle", "diff", BUNDLE, new, "--generate", 300, "--engine-timeout", 0.3, "--fail-on", "loosening")

    first, second, *_ = done.out.splitlines()
    assert (done.code, first.endswith("; the comparison was not finished")) == (1, True)
    late = "OPA did not finish within 0.9 s; "
    assert second.startswith(f"not finished: calls of proofs: {late}causes: {late}give the engine more time with ")
    assert "DENY sanctions.not_clear -> ALLOW" in done.out


def test_all_changes_undone_give_the_old_bundle_and_all_applied_give_the_new(tmp_path: Path, opa: Path) -> None:
    def before(document: Any) -> None:
        document["agents"] = {"agent:payments": {"initiate_wire": "2.1.0"}}

    def after(document: Any) -> None:
        wire = document["tools"]["initiate_wire"]
        wire["approval"] |= {"expires": "PT9H", "expires_seconds": 32400, "approvers": ["cfo"]}
        wire |= {"scopes": [], "roles": {"amount": "value"}, "flow": {"profile": "strict"}}
        document["tools"]["renamed"] = document["tools"].pop("lookup_beneficiary")
        document["agents"] = {"agent:payments": {"initiate_wire": "2.2.0", "renamed": "1.0.0"}}

    rule = f"_clear if _status == {CLEAR.partition('== ')[2]}\n\n_status := input.context.sanctions_status\n{NIGHT}"
    old = read_bundle(changed(tmp_path / "a", opa, f"{CLEAR}\n\n_gone(x) if x", before, settings={"a": {"b": 1}}))
    new = read_bundle(changed(tmp_path / "b", opa, rule, after, settings={"a": {"b": 2, "c": [3]}}))
    pair = BundlePair.of(opa, old, new)
    changes = changes_between(pair, structure_of(pair))

    for undone, start, end in ((True, new, old), (False, old, new)):
        modules, data = edition(pair, (old.data, new.data), changes, undone=undone)
        both = BundlePair.of(opa, end, replace(start, modules={**start.modules, **modules}, data=data))
        # A rule that is removed stays, but is never true.
        assert [name for name, (missing, _) in both.differing.items() if missing] == []
        assert all("false" in rule_text(both.new, rule) for _, more in both.differing.values() for rule in more)
        assert data_changes(end, both.new.bundle) == ()
        (document,), (expected,) = (list(bundle.data["manifests"].values()) for bundle in (both.new.bundle, end))
        assert document == expected
    assert len(changes) > 12
