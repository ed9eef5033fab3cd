"""A change of a manifest entry that is called narrower never lets the engine decide a request less strictly."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest

from pdp.decision import Verdict
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import JsonValueError
from pdp.manifest.effective import effective_manifest
from pdp.manifest.fields import EffectClass
from pdp.manifest.model import Manifest
from pdp.manifest.versions import manifest_diff
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.neighbours.bases import CalledTool, approved_call, complete_call
from pdp.workbench.neighbours.values import edited
from pdp.workbench.neighbours.variants import changes
from pdp.workbench.neighbours.vocabulary import Vocabulary

NARROWER = "narrower (proved)"
DIMENSIONS = ("approval", "context.idempotency_key", "context.purpose", "grant")
WORDS = Vocabulary()
_Fields = dict[str, Any]
LIMITS = [{"limit": name, "argument": "amount"} for name in ("one", "two")]
BOSS = {"approvers": ["boss"], "quorum": 1, "expires": "PT1H"}
LASTING = {**BOSS, "lasting": {"reaches": ["run", "until"], "free": ["/text"]}}
ENTRY = {
    "version": "1.0.0", "risk_tier": "low", "effect_class": "commit-low", "scopes": ["a"],
    "schema": {
        "type": "object",
        "properties": {
            "amount": {"type": "number"}, "to": {"type": "string"}, "text": {"type": "string"},
            "page": {"type": "string"}, "sources": {"type": "array", "items": {"type": "string"}},
        },
    },
}  # fmt: skip


def approval(**changes: Any) -> _Fields:
    return {"approval": {**BOSS, **changes}}


def lasting(**changes: Any) -> _Fields:
    return {"approval": {**BOSS, "lasting": {**LASTING["lasting"], **changes}}}  # type: ignore[dict-item]


# The entries around each change, and each change as two sets of fields.
PLAIN: dict[str, _Fields] = {
    "low": {}, "high": {"risk_tier": "high", **approval()},
    "unstated": {"risk_tier": "high", "effect_class": None, **approval()},
    "lasting": {"risk_tier": "high", "approval": LASTING}, "read": {"effect_class": "read-external"},
}  # fmt: skip
LABELLED: dict[str, _Fields] = {
    "party": {"effect_class": "stage", "roles": {"to": "destination"}, **approval()},
    "page": {"effect_class": "read-internal", "roles": {"page": "url"},
             "flow": {"profile": "watch", "rules": ["address_untrusted"], "otherwise": "deny"}},
    "strict": {"roles": {"to": "destination", "text": "body"}, "flow": {"profile": "strict"}, "approval": LASTING},
}  # fmt: skip
CHANGES: dict[str, tuple[_Fields, _Fields]] = {
    "tier": ({"risk_tier": "low"}, {"risk_tier": "high"}),
    "scopes": ({"scopes": ["a"]}, {"scopes": ["a", "b"]}),
    "first scope": ({"scopes": []}, {"scopes": ["a"]}),
    "purposes": ({}, {"purposes": ["p"]}),
    "fewer purposes": ({"purposes": ["p", "q"]}, {"purposes": ["p"]}),
    "first limit": ({}, {"limits": LIMITS[:1]}),
    "second limit": ({"limits": LIMITS[:1]}, {"limits": LIMITS}),
    "key": ({}, {"idempotency": {"required": True}}),
    "sources": ({}, {"provenance": {"required": ["sources"]}}),
    "destructive": ({}, {"destructive": True}),
    "body": ({"roles": {"to": "destination"}}, {"roles": {"to": "destination", "text": "body"}}),
    "profile": ({"flow": {"profile": "watch"}}, {"flow": {"profile": "strict"}}),
    "rule": ({"flow": {"profile": "watch"}}, {"flow": {"profile": "watch", "rules": ["egress"]}}),
    "otherwise": ({}, {"flow": {"otherwise": "deny"}}),
    "admits": ({"admits": ["m"]}, {"admits": []}),
    "quorum": (approval(), approval(quorum=2)),
    "expires": (approval(), approval(expires="PT1M")),
    "approvers": (approval(approvers=["boss", "$subject"]), approval()),
    "within": ({"limits": LIMITS, **approval(unless_within_limits=True)}, {"limits": LIMITS, **approval()}),
    "max": (lasting(), lasting(max="PT1H")), "uses": (lasting(), lasting(uses=3)),
    "reach": (lasting(), lasting(reaches=["run"])), "not free": (lasting(), lasting(free=[])),
    "not lasting": (lasting(), approval()),
    **{f"{one} {other}": ({"effect_class": one}, {"effect_class": other})
       for one, other in combinations(map(str, EffectClass), 2)},
}  # fmt: skip
REACHED = {"tier", "purposes", "first limit", "key", "quorum", "expires", "approvers", "commit-low commit-high"}
LABELS = frozenset(("destructive", "body", "profile", "rule", "otherwise", "admits"))
NOT_NARROWER = {
    "low_first_scope", "unstated_first_limit", "lasting_first_limit", "lasting_not_free", "low_read_external_stage",
    "low_read_external_commit_high", "party_body", "page_pure_stage",
}  # fmt: skip


def cases(around: Mapping[str, _Fields], *, labels: bool) -> Iterator[tuple[str, str, list[_Fields]]]:
    """Yield a name, the name of the change, and the entry before and after the change."""
    for name, fields in around.items():
        for change, sides in CHANGES.items():
            of_class = "effect_class" in sides[0]
            if (labels or change not in LABELS) and not (
                of_class and name in ("high", "unstated", "lasting", "strict")
            ):
                entry = f"{name}_{change}".replace(" ", "_").replace("-", "_")
                wholes = [{**ENTRY, **fields, **side, "name": entry} for side in sides]
                yield entry, change, [{k: value for k, value in whole.items() if value is not None} for whole in wholes]


def requests(tool: CalledTool) -> Iterator[Any]:
    """Yield a complete and an approved call, with some changes of attributes and all of approvals, grants and runs."""
    call = complete_call(tool, WORDS, ["m"], {})
    for base in (call, approved_call(call, tool)):
        every = changes(base, WORDS)
        some = [change for at, change in enumerate(every) if at % 48 == 0 or change.dimension in DIMENSIONS]
        yield from (edited(base, *change.edits) for change in some)
        yield base


@pytest.mark.parametrize(("around", "labels"), [(PLAIN, False), (LABELLED, True)], ids=["plain", "labelled"])
def test_engine_decides_no_request_less_strictly_after_a_change_that_is_narrower(
    around: dict[str, _Fields], labels: bool
) -> None:
    every = list(cases(around, labels=labels))
    old, new = (
        effective_manifest(
            Manifest.model_validate({"manifest_version": "1", "tools": [each[2][side] for each in every]})
        )
        for side in (0, 1)
    )
    words = {each.tool: {change.word for change in each.governance} for each in manifest_diff(old, new).tools}
    narrower = {tool for tool, said in words.items() if said == {NARROWER}}
    documents = [{each.digest: each.document} for each in (old, new)]
    pair, order = Manifests(*documents), (Verdict.DENY, Verdict.STEP_UP, Verdict.ALLOW)
    loosened, tightened = dict[str, bytes](), set[str]()
    with EmbeddedEngine.baseline(manifests=documents[0] | documents[1]) as engine:
        for name, change, _ in every:
            stated = tuple(each.document["tools"][name] for each in (old, new))
            tool = CalledTool(name, old.digest, old.version, stated, old.tools[name])
            for request in requests(tool):
                with suppress(JsonValueError):
                    bodies = pair.requests(request)
                    before, after = (order.index(engine.decide_body(body).verdict) for body in bodies)
                    if after > before:
                        loosened[name] = bodies[0]
                    elif after < before:
                        tightened.add(change)

    assert not {tool: loosened[tool] for tool in narrower & loosened.keys()}
    assert NOT_NARROWER & words.keys() <= words.keys() - narrower
    # The requests reach the fields: these changes deny or escalate a call.
    assert tightened >= REACHED
