"""`pdp approvals --service`: the same steps at a service that runs, by whom the token stands for."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import SESSION, pdp, written
from tests.support.payments import wire
from tests.support.service import APPROVER, RunningService, running_service

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("served")) as service:
        yield service


@pytest.fixture(autouse=True)
def _as_approver(served: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_TOKEN", served.token(["approve"], APPROVER))


def opened(served: RunningService, key: str) -> str:
    session = {"facts": SESSION["facts"], "idempotency_key": key}
    answer = served.client().post("/v1/proposals", json={"proposal": wire(), "session": session})
    approval_id: str = answer.json()["approval"]["id"]
    return approval_id


def test_it_is_listed_shown_and_decided(served: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (opened(served, key) for key in ("a", "b", "c"))
    place = ("--service", served.url)

    listed = pdp("approvals", "list", *place)
    assert [line.split()[:3] for line in listed.out.splitlines()] == [
        [each, "pending", "initiate_wire"] for each in (first, second, third)
    ]
    shown = pdp("approvals", "show", first, *place, "--json")
    assert shown.json == served.client().get(f"/v1/approvals/{first}").json()
    granted = pdp("approvals", "grant", first, *place)
    assert (granted.code, granted.err, granted.out.splitlines()[0]) == (0, "", f"granted  {first}")
    assert re.search(r"  granted    by approver-7 as payments\.approver at ", granted.out)
    denied = pdp("approvals", "deny", second, *place, "--why", "not today", "--json")
    assert (denied.json["state"], denied.json["why"]) == ("denied", "not today")
    monkeypatch.setenv("PDP_TOKEN", served.token(["propose"]))
    withdrawn = pdp("approvals", "withdraw", third, *place, "--json")
    assert (withdrawn.code, withdrawn.json["state"]) == (0, "withdrawn")
    states = {each["id"]: each["state"] for each in pdp("approvals", "list", "--all", *place, "--json").json}
    assert states == {first: "granted", second: "denied", third: "withdrawn"}
    assert pdp("approvals", "list", *place).out == "no approval waits\n"


def test_what_the_service_refuses_is_said(served: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = opened(served, "refused")
    monkeypatch.setenv("PDP_TOKEN", served.token(["approve"]))

    own = pdp("approvals", "grant", asked, "--service", served.url)
    unknown = pdp("approvals", "show", "none", "--service", served.url)

    assert (own.code, own.out) == (1, "")
    assert own.err == (
        f"error: approvals.requester: approval {asked}: nobody decides on a call that is their own, or made for them\n"
    )
    assert (unknown.code, unknown.err) == (1, "error: approvals.unknown: approval none: no approval has that id\n")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--store", "sqlite:///agent.db"), "--service stands for store, audit stream and session"),
        (("-s", "session.json"), "--service stands for store, audit stream and session"),
        (("--audit", "audit.jsonl"), "--service stands for store, audit stream and session"),
    ],
)
def test_what_excludes_a_service(options: tuple[str, ...], fault: str) -> None:
    done = pdp("approvals", "grant", "a", "--service", "http://127.0.0.1:1", *options)

    assert (done.code, done.out, done.err) == (2, "", f"error: {fault}\n    hint: leave the others out\n")


def test_who_decides_has_to_be_stated(tmp_path: Path) -> None:
    written(tmp_path / "session.json", SESSION)

    done = pdp("approvals", "grant", "a", "--store", f"sqlite:///{tmp_path}/agent.db")

    assert (done.code, done.err) == (
        2, "error: nobody is named who decides\n    hint: name a session file with --session, or a --service\n",
    )  # fmt: skip


def test_a_service_that_is_not_there_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = pdp("approvals", "grant", "a", "--service", "http://127.0.0.1:1")
    monkeypatch.delenv("PDP_TOKEN")
    bare = pdp("approvals", "grant", "a", "--service", "http://127.0.0.1:1")
    plain = pdp("approvals", "list", "--service", "http://policy.example")

    assert (gone.code, gone.err) == (1, "error: http://127.0.0.1:1: All connection attempts failed\n")
    assert (bare.code, bare.err) == (
        2, "error: no token for the service\n    hint: pass it, or set PDP_TOKEN\n",
    )  # fmt: skip
    assert (plain.code, plain.err) == (
        2, "error: not the address of a service\n    hint: https://HOST[:PORT][/PATH]; http for this machine alone\n",
    )  # fmt: skip
