"""Contracts of tools in calls: invariants, the values that a function receives, and how results change the state."""

from collections.abc import Iterator
from typing import Any

import pytest

from pdp import MemoryAudit, Pep
from pdp.contract.invariants import DROP_STEP, Resolution, ToolInvariant, Trip
from pdp.contract.registry.registry import Registry
from pdp.contract.registry.tool_contract import (
    ToolConfigParam,
    ToolContract,
    ToolStateEffect,
    ToolStateRead,
)
from pdp.errors import UsageError
from tests.support.desk import Call, both_ways, events, recorded

SEARCH = ToolContract(
    name="search_papers",
    schema={"query": "str — what to look for", "limit": "Optional[int] — how many", "web": "Optional[bool] — also"},
    invariants=[
        ToolInvariant(
            "LIMIT_AT_MOST_TEN", "limit is at most 10",
            lambda call, state, config: (call.get("limit") or 0) <= 10,
            correct=lambda call, state, config: ({**call, "limit": 10}, True), corrects=["limit"],
        ),
        ToolInvariant("NO_SECRETS", "no query for secrets", lambda call, state, config: "secret" not in call["query"]),
        ToolInvariant(
            "NOT_TWICE", "nothing is searched for twice",
            lambda call, state, config: call["query"] not in state.get("searched", []),
            correct=lambda call, state, config: DROP_STEP,
        ),
    ],
    description="Search papers.",
    config_params=[ToolConfigParam("mode", "fast", str.lower), ToolConfigParam("key")],
    state_reads=[ToolStateRead("patient"), ToolStateRead("searched")],
    state_effects=[
        ToolStateEffect("found", list, "append", preserve_across_turns=True, prompt_template_var="FOUND"),
        ToolStateEffect("last_query", str, prompt_template_var="LAST_QUERY"),
    ],
)  # fmt: skip
SESSION: dict[str, Any] = {
    "claims": {"sub": "ann", "emts": {"papers": True}},
    "run_id": "run-1",
    "state": {"patient": "p-7", "found": ["old"], "searched": ["known"], "other": 1},
    "config": {"mode": "DEEP"},
}
Given = list[dict[str, Any]]


@pytest.fixture(scope="module")
def given() -> Given:
    """The arguments with which the tool function was called, in order."""
    return []


@pytest.fixture(scope="module")
def registry(given: Given) -> Registry:
    registry = Registry()

    def search_papers(
        query: str, patient: str | None, mode: str, key: str | None, limit: int | None = None, web: bool | None = None
    ) -> dict[str, Any]:
        given.append({"query": query, "patient": patient, "mode": mode, "key": key, "limit": limit, "web": web})
        if query == "break":
            raise RuntimeError("no")
        return {"found": "not a list" if query == "mistyped" else [f"{query} 1"], "last_query": query, "hits": 1}

    registry.register_contract(SEARCH, search_papers, effect_class="read-internal", risk_tier="low", scopes=["papers"])
    registry.register_contract(
        ToolContract("tell_time", {}, [], "Tell the time."), lambda: "noon", effect_class="pure", risk_tier="low"
    )
    return registry


@pytest.fixture(scope="module")
def base(registry: Registry) -> Iterator[Pep]:
    pep = Pep.from_registry(registry)
    yield pep
    pep.engine.close()


@pytest.fixture
def pep(base: Pep, given: Given) -> Pep:
    given.clear()
    return base.with_changes(audit=MemoryAudit())


def search(query: str, **more: Any) -> dict[str, Any]:
    return {"tool": "search_papers", "arguments": {"query": query, **more}}


@both_ways
def test_call_is_denied_if_its_config_cannot_be_normalised(pep: Pep, given: Given, call: Call) -> None:
    denied = call(pep, search("cats"), {**SESSION, "config": {"mode": 7}})

    assert (denied.allowed, denied.executed, denied.failed_check, given) == (False, False, "config", [])
    assert [(reason.code, reason.message) for reason in denied.reasons] == [
        ("decision.request_invalid", "config mode: the normalizer raised TypeError")
    ]


@both_ways
def test_tool_function_gets_arguments_state_and_config_and_its_result_is_merged_into_the_state(
    pep: Pep, given: Given, call: Call
) -> None:
    ran = call(pep, search("gene", limit=3), SESSION)

    assert given == [{"query": "gene", "patient": "p-7", "mode": "deep", "key": None, "limit": 3, "web": None}]
    assert ran.outcome.as_json() == {"status": "accepted", "proposal": search("gene", limit=3)}
    assert ran.result == {"found": ["gene 1"], "last_query": "gene", "hits": 1}
    assert ran.state is not None
    assert ran.state == {
        "patient": "p-7", "found": ["old", "gene 1"], "searched": ["known"], "other": 1, "last_query": "gene",
    }  # fmt: skip
    assert SESSION["state"]["found"] == ["old"]


@both_ways
def test_corrected_call_is_decided_and_run_with_the_corrected_arguments(pep: Pep, given: Given, call: Call) -> None:
    ran = call(pep, search("gene", limit=99), SESSION)

    assert ran.trips == (Trip("LIMIT_AT_MOST_TEN", "limit is at most 10", Resolution.CORRECTED, ("limit",)),)
    assert ran.outcome.as_json() == {"status": "transformed", "proposal": search("gene", limit=10)}
    assert ran.request is not None
    assert ran.request["context"]["arguments"] == {"query": "gene", "limit": 10}
    assert [each["limit"] for each in given] == [10]
    assert [event["status"] for event in events(pep)] == ["transformed", "transformed"]


@both_ways
def test_pruned_call_is_recorded_but_not_decided(pep: Pep, given: Given, call: Call) -> None:
    dropped = call(pep, search("known"), SESSION)

    assert (dropped.pruned, dropped.verdict, dropped.request, dropped.executed) == (True, None, None, False)
    assert dropped.outcome.as_json() == {"status": "transformed"}
    assert [str(trip) for trip in dropped.trips] == ["NOT_TWICE: nothing is searched for twice (pruned)"]
    assert given == []
    [event] = events(pep)
    assert (event["type"], event["status"], event["outcome"], event["verdict"], event["rejection"]) == (
        "tool.search_papers.dispatch", "transformed", "not_executed", None, None,
    )  # fmt: skip


@both_ways
def test_rejection_names_the_violated_invariant(pep: Pep, given: Given, call: Call) -> None:
    rejected = call(pep, search("secret"), SESSION)

    assert rejected.outcome.as_json() == {
        "status": "rejected", "rejection": {"code": "INVALID_PAYLOAD", "reason": "NO_SECRETS: no query for secrets"},
    }  # fmt: skip
    assert (rejected.verdict, given) == (None, [])
    assert [(event["status"], event["rejection"]) for event in events(pep)] == [("rejected", "INVALID_PAYLOAD")]


def test_result_that_violates_declared_state_effects_changes_no_state(pep: Pep) -> None:
    ran = pep.call(search("mistyped"), SESSION)

    assert (ran.executed, ran.result, ran.state) == (True, None, None)
    assert ran.outcome.failure is not None
    assert (ran.outcome.failure.message, ran.outcome.failure.details) == (
        "state effect `found`: the result has str, expected array",
        {"exception": "ToolResultError", "result": "invalid", "effect": "done"},
    )
    assert recorded(pep) == [("tool.search_papers.dispatch", "ALLOW"), ("tool.search_papers.result", "failed")]


def test_call_of_a_tool_without_state_effects_returns_no_state(pep: Pep) -> None:
    ran = pep.call({"tool": "tell_time", "arguments": {}}, SESSION)

    assert (ran.result, ran.state) == ("noon", None)


def test_config_value_is_normalised_once_per_call() -> None:
    """The tool contract document requires that a config value is declared and normalized only once."""
    seen: list[str] = []
    read: list[str] = []

    def lower(value: str) -> str:
        seen.append(value)
        return value.lower()

    def reads(_call: Any, _state: Any, config: Any) -> bool:
        read.append(config["mode"])
        return True

    rules = [ToolInvariant(name, "Reads the mode", reads) for name in ("A", "B")]
    told = ToolContract("tell_mode", {}, rules, "Tell the mode.", config_params=[ToolConfigParam("mode", "x", lower)])
    registry = Registry()
    registry.register_contract(told, lambda mode: mode, effect_class="pure", risk_tier="low")
    pep = Pep.from_registry(registry)
    ran = pep.call({"tool": "tell_mode", "arguments": {}}, {**SESSION, "config": {"mode": "SLOW"}})
    pep.engine.close()

    # The registry normalizes the default value before any call, also only once.
    assert (seen, read, ran.result) == (["x", "SLOW"], ["slow", "slow"], "slow")


def test_call_of_a_tool_that_the_model_no_longer_sees_still_runs() -> None:
    """`available` only decides which tools a model sees, because the model may have proposed a call earlier."""
    registry = Registry()
    registry.register_contract(
        ToolContract("tell_time", {}, [], "Tell the time."), lambda: "noon", effect_class="pure", risk_tier="low",
        available=lambda: (False, "rate limit hit"),
    )  # fmt: skip
    pep = Pep.from_registry(registry)
    ran = pep.call({"tool": "tell_time", "arguments": {}}, SESSION)
    pep.engine.close()

    assert (registry.definitions(), ran.executed, ran.result) == ([], True, "noon")


def test_state_after_a_result_contains_its_declared_state_effects(pep: Pep) -> None:
    state = pep.state_after("search_papers", {"found": ["a"]}, {"found": ["b"], "last_query": None})

    assert state == {"found": ["a", "b"]}
    with pytest.raises(UsageError) as caught:
        pep.state_after("no_such", {}, {})
    assert str(caught.value) == "no_such is not a tool of manifest 1 (check the name)"


def test_registry_of_another_manifest_is_rejected(registry: Registry, pep: Pep) -> None:
    other = Registry()
    other.register_contract(ToolContract("tell_date", {}, [], "Tell the date."), effect_class="pure", risk_tier="low")
    with pytest.raises(UsageError) as caught:
        Pep(registry.manifest, pep.engine, registry=other)

    assert str(caught.value) == "the registry was created with another manifest (use `Pep.from_registry`)"
