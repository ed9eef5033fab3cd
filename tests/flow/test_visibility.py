"""Visibility of tools for a subject's model: ALLOW, NEVER, or DEPENDS if the arguments decide."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp import MemoryAudit, Pep
from pdp.errors import UsageError
from tests.support import payments
from tests.support.scripted import Scripted

MANIFEST = """
manifest_version: 2026.1.0
agents:
  - id: "agent:a"
    tools: {add_numbers: 1.0.0, read_file: 1.0.0, fetch_page: 1.0.0, read_corpus: 1.0.0, delete_file: 1.0.0}
tools:
  - {name: add_numbers, version: 1.0.0, effect_class: pure, risk_tier: low, schema: {type: object}}
  - {name: read_file, version: 1.0.0, effect_class: read-internal, risk_tier: low, scopes: [files],
     schema: {type: object}}
  - {name: fetch_page, version: 1.0.0, effect_class: read-external, risk_tier: low, scopes: [files],
     purposes: [research], schema: {type: object}}
  - {name: read_corpus, version: 1.0.0, effect_class: read-internal, risk_tier: low, scopes: [files],
     schema: {type: object, properties: {corpus: {type: string}}},
     resource: {type: corpus, id: $arguments.corpus}}
  - {name: delete_file, version: 1.0.0, effect_class: commit-high, risk_tier: medium, scopes: [files],
     compensation: read_file, approval: {approvers: [boss]}, schema: {type: object}}
"""


@pytest.fixture(scope="module")
def pep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pep]:
    file: Path = tmp_path_factory.mktemp("visible") / "manifest.yaml"
    file.write_text(MANIFEST)
    pep = Pep.from_files(str(file), tools={"add_numbers": lambda: 1})
    yield pep
    pep.engine.close()


def seen(pep: Pep, way: str, session: Any) -> dict[str, str]:
    visibilities = pep.visible_tools(session) if way == "waiting" else asyncio.run(pep.avisible_tools(session))
    return {name: each.value for name, each in visibilities.items()}


both_ways = pytest.mark.parametrize("way", ["waiting", "asynchronously"])
FILES = {"sub": "ann", "emts": {"files": True}}


@both_ways
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {}, {"add_numbers": "ALLOW", "read_file": "ALLOW", "fetch_page": "NEVER", "read_corpus": "DEPENDS",
                 "delete_file": "DEPENDS"}, id="scopes, no purpose",
        ),
        pytest.param(
            {"purpose": "research"},
            {"add_numbers": "ALLOW", "read_file": "ALLOW", "fetch_page": "ALLOW", "read_corpus": "DEPENDS",
             "delete_file": "DEPENDS"}, id="with the purpose",
        ),
        pytest.param(
            {"claims": {"sub": "ann"}},
            {"add_numbers": "ALLOW", "read_file": "NEVER", "fetch_page": "NEVER", "read_corpus": "NEVER",
             "delete_file": "NEVER"}, id="without scopes",
        ),
        pytest.param(
            {"claims": {**FILES, "limits": "many"}},
            dict.fromkeys(("add_numbers", "read_file", "fetch_page", "read_corpus", "delete_file"), "DEPENDS"),
            id="claims that the policy cannot read",
        ),
        pytest.param(
            {"agent": "agent:b"},
            dict.fromkeys(("add_numbers", "read_file", "fetch_page", "read_corpus", "delete_file"), "NEVER"),
            id="an agent without pins",
        ),
    ],
)  # fmt: skip
def test_visibility_of_tools_depends_on_the_subject(
    pep: Pep, way: str, changes: dict[str, Any], expected: dict[str, str]
) -> None:
    session = {"claims": FILES, "agent": "agent:a", **changes}

    assert seen(pep, way, session) == expected


def test_visible_tools_neither_runs_nor_records_a_call(pep: Pep) -> None:
    used = pep.with_changes(audit=MemoryAudit())
    used.visible_tools({"claims": FILES})

    assert isinstance(used.audit, MemoryAudit)
    assert used.audit.events == []


@both_ways
def test_visible_tools_requires_a_session_with_a_subject(pep: Pep, way: str) -> None:
    faults = []
    for session in list[Any]((None, {"claims": {}})):
        with pytest.raises(UsageError) as caught:
            seen(pep, way, session)
        faults.append(caught.value.message)

    assert faults == ["the call has no session", "session: claims.sub is missing, but a decision needs a subject"]


def test_failing_engine_is_asked_once_and_shows_no_tools(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(MANIFEST)
    engine = Scripted(lambda _: {})
    pep = Pep.from_files(str(file), engine=engine)

    assert list(seen(pep, "waiting", {"claims": FILES}).values()) == ["NEVER"] * 5
    assert len(engine.asked) == 1


def test_visibility_of_a_tool_does_not_contradict_the_decision_on_a_call(pep: Pep) -> None:
    session = {"claims": FILES, "agent": "agent:a"}
    for name, visibility in seen(pep, "waiting", session).items():
        decided = pep.decide({"tool": name, "arguments": {}}, session)

        assert decided.allowed or visibility != "ALLOW"
        assert not decided.allowed or visibility != "NEVER"


def test_initiate_wire_of_the_payments_example_has_visibility_depends() -> None:
    with payments.engine() as engine:
        pep = Pep(payments.effective(), engine)

        assert {name: each.value for name, each in pep.visible_tools(payments.session()).items()} == {
            "lookup_beneficiary": "ALLOW", "validate_payment": "ALLOW", "initiate_wire": "DEPENDS",
        }  # fmt: skip


LABELLED = """
manifest_version: 2026.1.0
tools:
  - {name: list_mails, effect_class: read-internal, risk_tier: low, scopes: [mail], schema: {type: object}}
  - {name: read_mail, effect_class: read-internal, risk_tier: low, scopes: [mail], roles: {mail: object},
     schema: {type: object, properties: {mail: {type: string}}}}
  - {name: empty_bin, effect_class: stage, risk_tier: low, scopes: [mail], flow: {profile: strict, otherwise: deny},
     schema: {type: object}}
  - {name: mark_read, effect_class: stage, risk_tier: low, scopes: [mail], flow: {profile: watch},
     schema: {type: object}}
  - {name: sort_mails, effect_class: stage, risk_tier: low, scopes: [mail], flow: {profile: watch, rules: [off_plan]},
     schema: {type: object}}
"""


def test_visibility_depends_on_the_run_if_manifest_tracks_flow(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(LABELLED)
    with Pep.from_files(str(file)) as pep:
        session = {"claims": {"sub": "ann", "emts": {"mail": True}}}

        # This manifest tracks the flow of data in runs, so calls in a session without a run are denied.
        assert set(seen(pep, "waiting", session).values()) == {"NEVER"}
        assert seen(pep, "waiting", {**session, "run_id": "run-1"}) == {
            "list_mails": "ALLOW", "read_mail": "DEPENDS", "empty_bin": "DEPENDS", "mark_read": "ALLOW",
            "sort_mails": "DEPENDS",
        }  # fmt: skip
