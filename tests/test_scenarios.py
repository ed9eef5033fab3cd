"""The payments example's scenarios, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp import Engine, Evaluation, Pep, Session
from pdp.documents import read_document
from pdp.engine.local import LocalOpa
from pdp.engine.sidecar import SidecarEngine
from tests import payments

SUITE: dict[str, Any] = read_document(payments.EXAMPLE / "scenarios.yaml").value


@pytest.fixture(scope="module", params=["embedded", pytest.param("sidecar", marks=pytest.mark.opa)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "embedded":
        with payments.engine() as embedded:
            yield embedded
    else:
        program: Path = request.getfixturevalue("opa")
        with LocalOpa(program, bundle=payments.BUNDLE) as local, SidecarEngine(local.url, token=local.token) as sidecar:
            yield sidecar


def laid_over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{name: laid_over(below.get(name), value) for name, value in above.items()}}


# How each key of `expect` is read from an evaluation; the trace is compared in the fields that are stated.
_SEEN: dict[str, Any] = {
    "status": lambda evaluation: evaluation.outcome.status,
    "rejection": lambda evaluation: evaluation.outcome.rejection.code,
    "verdict": lambda evaluation: evaluation.verdict,
    "codes": lambda evaluation: list(evaluation.codes),
}


def seen(evaluation: Evaluation, expect: dict[str, Any]) -> dict[str, Any]:
    found = {key: _SEEN[key](evaluation) for key in expect if key != "trace"}
    if "trace" in expect:
        found["trace"] = {name: getattr(evaluation.trace, name) for name in expect["trace"]}
    return found


@pytest.mark.parametrize("scenario", [pytest.param(each, id=each["name"]) for each in SUITE["scenarios"]])
def test_scenario(engine: Engine, scenario: dict[str, Any]) -> None:
    session = Session.read(laid_over(SUITE["session"], scenario.get("session", {})))

    evaluation = Pep(payments.effective(), engine).decide(scenario["propose"], session)

    assert seen(evaluation, scenario["expect"]) == scenario["expect"]
