"""Tests of cumulative limits in the manifest and in the governance file."""

import json
from typing import Any

import pytest

from pdp.errors import FileFaultsError
from pdp.manifest.load import load_effective

SUM: dict[str, Any] = {"limit": "wire.daily", "argument": "amount", "per": "subject", "window": "P1D"}
DAY = {"days": 1, "from": "midnight"}
NO_UNITS: list[Any] = [0, -1, "0.00", "1e-2", "a", True, [], "0.0000000000001", "1/3"]


def tool(*limits: dict[str, Any], name: str = "send_wire") -> dict[str, Any]:
    properties = {"amount": {"type": "number"}, "fee": {"type": "integer"}, "fee_in": {"type": "string"}}
    schema = {"type": "object", "properties": properties}
    return {"name": name, "scopes": ["desk"], "risk_tier": "low", "schema": schema, "limits": list(limits)}


def limits_of(*tools: dict[str, Any], governed: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    manifest = json.dumps({"manifest_version": "1", "tools": tools}).encode()
    governance = None if governed is None else json.dumps({"actions": {"send_wire": {"limits": governed}}}).encode()
    options: dict[str, Any] = {} if governance is None else {"governance_text": governance}
    path = None if governance is None else "g.json"
    document = load_effective("m.json", path, manifest_text=manifest, **options).document
    effective: list[dict[str, Any]] = document["tools"]["send_wire"]["limits"]
    return [dict(limit) for limit in effective]


def faults_of(*tools: dict[str, Any], governed: list[dict[str, Any]] | None = None) -> list[str]:
    with pytest.raises(FileFaultsError) as caught:
        limits_of(*tools, governed=governed)
    return [fault.message for fault in caught.value.faults if not fault.warning]


@pytest.mark.parametrize(
    ("stated", "effective"),
    [
        ({"limit": "wire.one", "argument": "amount"}, {"limit": "wire.one", "argument": "amount"}),
        (SUM, {**SUM, "window": "PT24H"}),
        ({**SUM, "unit": 0.01, "currency": "fee_in"}, {**SUM, "unit": "0.01", "currency": "fee_in", "window": "PT24H"}),
        ({**SUM, "unit": 0.000001}, {**SUM, "unit": "0.000001", "window": "PT24H"}),
        ({**SUM, "unit": "100", "window": DAY}, {**SUM, "unit": "100", "window": DAY}),
        ({**SUM, "unit": 1.50}, {**SUM, "unit": "1.5", "window": "PT24H"}),
        ({"limit": "l", "count": True, "per": "run"}, {"limit": "l", "count": True, "per": "run"}),
    ],
)  # fmt: skip
def test_limit_stated_only_in_the_manifest_or_only_in_the_governance_file_applies(
    stated: dict[str, Any], effective: dict[str, Any]
) -> None:
    assert limits_of(tool(stated)) == [effective]
    assert limits_of(tool(), governed=[stated]) == [effective]
    assert limits_of(tool(stated), governed=[stated]) == [effective]


def test_limits_of_manifest_and_governance_file_apply_together() -> None:
    one = {"limit": "wire.one", "argument": "amount"}
    fee = {**SUM, "argument": "fee", "window": "PT24H"}
    assert limits_of(tool(SUM), governed=[one, fee]) == [{**SUM, "window": "PT24H"}, fee, one]


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        ({"limit": "l"}, "limit `l` limits nothing"),
        ({"limit": "l", "per": "run"}, "limit `l` limits nothing"),
        ({**SUM, "count": True}, "limit `wire.daily` counts calls, so it cannot have an `argument`"),
        ({"limit": "l", "count": True, "per": "run", "unit": 1}, "limit `l` counts calls, so it cannot have a unit"),
        ({"limit": "l", "count": True, "per": "run", "currency": "fee_in"},
         "limit `l` counts calls, so it cannot have a currency"),
        ({"limit": "l", "count": True}, "limit `l` has count, but does not say whose calls count"),
        ({"limit": "l", "argument": "fee", "unit": 1, "window": DAY},
         "limit `l` has unit, window, but does not say whose calls count"),
        ({**SUM, "per": "run"}, "limit `wire.daily` counts per run, so it needs no window"),
        ({"limit": "l", "argument": "amount", "per": "tool"}, "limit `l` needs a window"),
        ({**SUM, "argument": "fee_in"}, "limit on argument `fee_in`, which is not declared as a number"),
        ({**SUM, "currency": "fee"}, "limit on argument `fee`, which is not declared as a text"),
        ({**SUM, "currency": "fee_inn"}, "`fee_inn` is not an argument of the schema"),
    ],
)  # fmt: skip
def test_limit_with_contradictory_fields_is_a_fault(limit: dict[str, Any], fault: str) -> None:
    assert faults_of(tool(limit)) == [fault]
    assert faults_of(tool(), governed=[limit]) == [fault]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        *[({"unit": unit}, "`limits[0].unit` must be a decimal above zero") for unit in NO_UNITS],
        ({"count": False}, "`limits[0].count` must be true, not false"),
        ({"per": "tenant"}, "`limits[0].per` must be one of subject, agent, run, tool, resource, not `tenant`"),
        ({"window": {"days": 0, "from": "midnight"}}, "`limits[0].window.days` must be at least 1, not `0`"),
        ({"window": {"days": 1, "from": "noon"}}, "`limits[0].window.from` must be one of midnight, not `noon`"),
        ({"window": {"days": 1}}, "`limits[0].window.from` is missing"),
        ({"window": "P1M"}, "`limits[0].window` must be an ISO 8601 duration"),
        ({"window": "PT0S"}, "`limits[0].window` must be longer than zero"),
    ],
)  # fmt: skip
def test_limit_field_of_wrong_type_is_a_fault(fields: dict[str, Any], fault: str) -> None:
    (found,) = faults_of(tool({**SUM, **fields}))
    assert found.startswith(fault)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({**SUM, "window": "P2D"}, id="window"),
        pytest.param({**SUM, "window": DAY}, id="kind of window"),
        pytest.param({**SUM, "per": "agent"}, id="per"),
        pytest.param({**SUM, "unit": 1}, id="unit"),
        pytest.param({**SUM, "currency": "fee_in"}, id="currency"),
        pytest.param({"limit": "wire.daily", "count": True, "per": "subject", "window": "P1D"}, id="count"),
        pytest.param({"limit": "wire.daily", "argument": "amount"}, id="of one call"),
    ],
)
def test_limits_of_the_same_name_must_have_the_same_fields(other: dict[str, Any]) -> None:
    fault = "limit `wire.daily` differs from the limit of this name in tool `send_wire`"
    assert faults_of(tool(SUM), tool(other, name="send_fast")) == [fault]
    assert fault in faults_of(tool(SUM), governed=[{**other, "argument": "fee"} if "argument" in other else other])
    # The limits may count different arguments of a call. The amounts of these arguments are added.
    assert limits_of(tool(SUM), tool({**SUM, "argument": "fee"}, name="send_fast")) == [{**SUM, "window": "PT24H"}]
