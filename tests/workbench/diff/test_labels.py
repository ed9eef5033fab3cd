"""The bundle diff shows a loosened data label by a call that the two bundles decide differently."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.engine.bundle.file import read_bundle
from pdp.manifest.effective import effective_manifest
from pdp.manifest.model import Manifest
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair
from tests.support.payments import BUNDLE

pytestmark = pytest.mark.opa

Fields = dict[str, Any]
READS: Fields = {
    "effect_class": "read-internal", "scopes": ["mail"], "schema": {"type": "object", "properties": {}},
}  # fmt: skip
WRITES: Fields = {
    "effect_class": "stage", "scopes": ["mail"],
    "schema": {"type": "object", "properties": {"to": {"type": "string"}, "text": {"type": "string"}}},
}  # fmt: skip
ROLES = {"to": "destination", "text": "body"}
MAIL: Fields = {**WRITES, "roles": ROLES}

# For each label of a tool with effects: the fields of a strict entry, and the fields of a loosened entry.
OF_CALLS: dict[str, tuple[Fields, Fields]] = {
    "roles.to": ({"roles": ROLES}, {"roles": {"text": "body"}}),
    "roles.text": ({"roles": ROLES}, {"roles": {"to": "destination"}}),
    "admits": ({"roles": ROLES}, {"roles": ROLES, "admits": ["mail"]}),
    "destructive": ({"roles": ROLES, "destructive": True}, {"roles": ROLES}),
    "flow.profile": ({"roles": ROLES}, {"roles": ROLES, "flow": {"profile": "watch"}}),
    "flow.profile strict": ({"roles": ROLES, "flow": {"profile": "strict"}}, {"roles": ROLES}),
    "flow.profile strict, without roles": ({"flow": {"profile": "strict"}}, {}),
    "flow.rules": ({"flow": {"profile": "watch", "rules": ["aimless"]}}, {"flow": {"profile": "watch"}}),
    "flow.otherwise": ({"roles": ROLES, "flow": {"otherwise": "deny"}}, {"roles": ROLES}),
}
# For each label of a tool result: the fields of a strict entry, and the fields of a loosened entry. The markings name
# the tool.
OF_RESULTS: dict[str, tuple[Fields, Fields]] = {
    "result.integrity": ({"result": {}}, {"result": {"integrity": "trusted"}}),
    "result.trusted": ({"result": {}}, {"result": {"trusted": ["/id"]}}),
    "result.parties": ({"result": {}}, {"result": {"parties": ["/sender"]}}),
    "result.created": ({"result": {}, **WRITES}, {"result": {"created": ["/id"]}, **WRITES}),
    "result.names": ({"result": {"trusted": ["/id"]}}, {"result": {"trusted": ["/id"], "names": ["/title"]}}),
    "result.markings": ({"result": {"markings": ["read_5"]}}, {"result": {}}),
}


def loosened(opa: Path, old: Mapping[str, Fields], new: Mapping[str, Fields]) -> tuple[set[str], list[tuple[str, Any]]]:
    """Return the changes that loosen the policy, and the tool and the old request of each call that is loosened."""
    base, bundles = read_bundle(BUNDLE), []
    for version, tools in (("1", old), ("2", new)):
        stated = [{"name": name, **fields} for name, fields in tools.items()]
        manifest = effective_manifest(Manifest.model_validate({"manifest_version": version, "tools": stated}))
        bundles.append(replace(base, data={**base.data, "manifests": {manifest.digest: manifest.document}}))
    pair = BundlePair.of(opa, *bundles)
    generated = GeneratedCalls(pair)
    with generated.comparison as comparison:
        differences = [*comparison.differences(generated.calls(1200 * len(old), solved=False))]
    calls = [
        (each.call.tool, orjson.loads(each.call.old)) for each in differences if each.change.direction == "loosens"
    ]
    return {change.name for change in pair.manifests.changes() if change.direction == "loosens"}, calls


def test_bundle_diff_shows_a_loosened_call_label_with_an_affected_call(opa: Path) -> None:
    names = {f"send_{number}": label for number, label in enumerate(OF_CALLS)}
    old, new = ({name: {**WRITES, **OF_CALLS[label][side]} for name, label in names.items()} for side in (0, 1))
    changes, calls = loosened(opa, old, new)

    assert changes == {f"{name}: {label.partition(' ')[0]}" for name, label in names.items()}
    assert {names[tool] for tool, _ in calls if tool in names} == {*OF_CALLS}


def test_bundle_diff_shows_a_loosened_result_label_with_an_affected_call(opa: Path) -> None:
    names = {f"read_{number}": label for number, label in enumerate(OF_RESULTS)}
    sends = {"send_mail": MAIL, "send_for_good": {**MAIL, "destructive": True}}
    old, new = ({name: {**READS, **OF_RESULTS[label][side]} for name, label in names.items()} for side in (0, 1))
    changes, calls = loosened(opa, old | sends, new | sends)

    assert changes == {f"{name}: {label}" for name, label in names.items()}
    flows = [request["context"]["flow"] for tool, request in calls if tool in sends]
    read = {origin["tool"] for flow in flows for argument in flow["arguments"] for origin in argument["from"]}
    marked = {marking for flow in flows for marking in flow["markings"]}
    assert {names[tool] for tool in read | marked} == {*OF_RESULTS}


@pytest.mark.parametrize(
    ("old", "new", "quorum", "people"),
    [
        ([], ["$subject"], 1, [["$subject"]]),
        (["clerk"], ["$subject"], 1, [["$subject"]]),
        (["clerk"], ["$subject", "clerk"], 2, [["$subject"], ["clerk"]]),
    ],
)
def test_bundle_diff_shows_a_call_that_its_subject_may_newly_approve(
    opa: Path, old: list[str], new: list[str], quorum: int, people: list[list[str]]
) -> None:
    before, after = (
        {"send_mail": {**WRITES, "risk_tier": "high", "approval": {"approvers": approvers, "quorum": quorum}}}
        for approvers in (old, new)
    )
    changes, calls = loosened(opa, before, after)

    assert changes == {"send_mail: approval.approvers"}
    assert people in [
        sorted(grant["roles"] for grant in request["context"]["approval"]["grants"]) for _, request in calls
    ]


def test_removing_all_labels_of_a_tool_loosens_its_calls(opa: Path) -> None:
    changes, calls = loosened(opa, {"send_mail": MAIL}, {"send_mail": WRITES})

    assert changes == {f"send_mail: {label}" for label in ("flow.profile", "roles.text", "roles.to")}
    assert {tool for tool, _ in calls} == {"send_mail"}


def test_stricter_labels_of_a_tool_loosen_no_call_in_a_bundle_diff(opa: Path) -> None:
    lax = {"read_mail": {**READS, "result": {"trusted": ["/id"]}}, "send_mail": {**MAIL, "admits": ["mail"]}}
    strict = {
        "read_mail": {**READS, "result": {"markings": ["mail"]}},
        "send_mail": {**MAIL, "destructive": True, "flow": {"profile": "strict", "otherwise": "deny"}},
    }

    assert loosened(opa, lax, strict) == (set(), [])
    assert loosened(opa, strict, lax)[1]
