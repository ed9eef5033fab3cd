"""Both engines decide plans identically by the policy `authz/plan`. A bundle without this policy denies every plan."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp.decision import Decision
from pdp.engine.bundle.file import baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import PLAN, Engine
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.opa.local import local_opa
from tests.engine.wasm.test_engine import bundle_of
from tests.support.probe_policy import by_hand

pytestmark = pytest.mark.opa

RULES = {
    "CITED": {"rule": "Medical answers cite", "purposes": ["medical"], "requires": ["answer", "cite"]},
    "ONE_SEARCH": {"tool": "search", "at_most": 1},
    "READ_FIRST": {"tool": "write", "only_after": ["read", "lookup"]},
}
TOOLS = ["answer", "cite", "search", "write", "read", "lookup"]
HOSTILE: list[Any] = [None, 1, "", "x", [], {}, {"tool": None}, {"tool": ""}, {"tool": ["read"]}, True]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, opa: Path) -> Iterator[tuple[Engine, Engine]]:
    released = read_bundle(baseline_bundle_path())
    data = {**released.data, "directory": {"planning": RULES}}
    file = tmp_path_factory.mktemp("planning") / "bundle.tar.gz"
    file.write_bytes(pack_bundle(release=7, wasm=released.wasm, data=data, modules=released.modules))
    bundle = read_bundle(file)
    with (
        EmbeddedEngine(bundle) as embedded,
        local_opa(opa, bundle=bundle) as local,
        SidecarEngine(local.url, token=local.token) as sidecar,
    ):
        yield embedded, sidecar


def plans(count: int) -> Iterator[Any]:
    """Yield random plans. One plan in four is malformed."""
    chance = random.Random(20260101)  # noqa: S311 - not for secrets
    for _ in range(count):
        steps: Any = [{"tool": chance.choice(TOOLS)} for _ in range(chance.randrange(6))]
        context: Any = {"purpose": chance.choice(["medical", "medical", "chat", None, ""])}
        plan: Any = {"steps": steps, "context": context}
        match chance.randrange(16):
            case 0:
                steps.insert(chance.randrange(len(steps) + 1), chance.choice(HOSTILE))
            case 1:
                plan[chance.choice(["steps", "context"])] = chance.choice(HOSTILE)
            case 2:
                context["purpose"] = chance.choice([7, [], {}, ["medical"]])
            case 3:
                # Skip the input `null`, because OPA adds a warning to its answer, and the sidecar engine rejects
                # answers with warnings.
                plan = chance.choice([plan, *HOSTILE[1:]])
            case _:
                pass
        yield plan


def whole(decision: Decision) -> bytes:
    return canonical({name: value for name, value in decision.as_json().items() if name != "decision_id"})


def test_both_engines_return_the_same_decision_on_a_plan(engines: tuple[Engine, Engine]) -> None:
    embedded, sidecar = engines
    seen: Counter[str] = Counter()
    for plan in plans(250):
        body = canonical(plan)
        ours = embedded.decide_body(body, PLAN)

        assert whole(ours) == whole(sidecar.decide_body(body, PLAN)), body
        seen.update([ours.verdict, *ours.codes])

    assert set(seen) == {
        "ALLOW", "DENY", "planning.acceptable", "planning.missing", "planning.out_of_order", "planning.request_invalid",
        "planning.too_many",
    }  # fmt: skip
    assert min(seen.values()) >= 8


@pytest.mark.parametrize("which", [0, 1], ids=["embedded", "sidecar"])
def test_engine_decides_a_plan_asynchronously(engines: tuple[Engine, Engine], which: int) -> None:
    body = canonical({"steps": [{"tool": "search"}, {"tool": "search"}], "context": {}})
    decision = asyncio.run(engines[which].adecide_body(body, PLAN))

    # In a session without a purpose, the rule for only one purpose also applies.
    assert decision.verdict == "DENY"
    assert [(reason.code, reason.details) for reason in decision.reasons] == [
        ("planning.missing", {"rule": "CITED", "tools": ["answer", "cite"]}),
        ("planning.too_many", {"rule": "ONE_SEARCH", "tool": "search", "calls": 2}),
    ]


def test_bundle_without_planning_policy_denies_every_plan() -> None:
    with EmbeddedEngine(bundle_of(by_hand())) as engine:
        decision = engine.decide_body(b'{"context":{},"steps":[]}', PLAN)

    assert [(reason.code, reason.message) for reason in decision.reasons] == [
        ("engine.unavailable", "the bundle has no entrypoint authz/plan")
    ]


def test_malformed_plan_is_denied_by_both_engines(engines: tuple[Engine, Engine]) -> None:
    assert [engine.decide_body(b"{", PLAN).codes for engine in engines] == [
        ("planning.request_invalid",),
        ("decision.request_invalid",),
    ]
