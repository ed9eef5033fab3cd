"""`pdp approvals --service` sends its commands to a running service, which takes the approver from the token."""

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


def test_approvals_of_a_service_are_listed_shown_and_decided(
    served: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (opened(served, key) for key in ("a", "b", "c"))
    place = ("--service", served.url)

    listed = pdp("approvals", "list", *place)
    assert [line.split()[0:2] + line.split()[-1:] for line in listed.out.splitlines()] == [
        [each, "initiate_wire:", f"{served.url}/console/approvals/{each}"] for each in (first, second, third)
    ]
    assert pdp("approvals", "list", *place, "--run", "another").out == "no pending approvals that match\n"
    shown = pdp("approvals", "show", first, *place, "--json")
    assert shown.json == served.client().get(f"/v1/approvals/{first}").json()
    granted = pdp("approvals", "grant", first, *place)
    assert (granted.code, granted.err, granted.out.splitlines()[0]) == (0, "", f"granted  {first}")
    assert re.search(r"  granted    by approver-7 as payments\.approver at ", granted.out)
    denied = pdp("approvals", "watch", *place, stdin=b"n not today\nq\n")
    assert denied.out.splitlines().count(f"denied  {second}") == 1
    failed = pdp("approvals", "deny", second, "none", *place)
    assert (failed.code, failed.out, len(failed.err.splitlines())) == (1, "", 2)
    assert pdp("approvals", "show", second[:8], *place).code == 1  # Only open approvals are found by part of the id.
    assert pdp("approvals", "show", second, *place, "--json").json["why"] == "not today"
    monkeypatch.setenv("PDP_TOKEN", served.token(["propose"]))
    withdrawn = pdp("approvals", "withdraw", third, *place, "--json")
    assert (withdrawn.code, withdrawn.json["state"]) == (0, "withdrawn")
    states = {each["id"]: each["state"] for each in pdp("approvals", "list", "--all", *place, "--json").json}
    assert states == {first: "granted", second: "denied", third: "withdrawn"}
    assert pdp("approvals", "list", *place).out == "no pending approvals\n"


def test_rejection_by_service_is_reported(served: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = opened(served, "refused")
    monkeypatch.setenv("PDP_TOKEN", served.token(["approve"]))

    own = pdp("approvals", "grant", asked, "--service", served.url)
    unknown = pdp("approvals", "show", "none", "--service", served.url)

    assert (own.code, own.out) == (1, "")
    assert own.err == (
        f"error: approvals.requester: approval {asked}: the requester of a call cannot decide on its approval\n"
        "    more: pdp explain approvals.requester\n"
    )
    assert unknown.code == 1
    assert unknown.err == (
        "error: approvals.unknown: approval none: no approval has that id\n    more: pdp explain approvals.unknown\n"
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--store", "sqlite:///agent.db"), "--service excludes --store, --audit and --session"),
        (("-s", "session.json"), "--service excludes --store, --audit and --session"),
        (("--audit", "audit.jsonl"), "--service excludes --store, --audit and --session"),
    ],
)
def test_service_option_excludes_options_for_a_local_store(options: tuple[str, ...], fault: str) -> None:
    done = pdp("approvals", "grant", "a", "--service", "http://127.0.0.1:1", *options)

    assert (done.code, done.out, done.err) == (2, "", f"error: {fault}\n    hint: remove the other options\n")


def test_grant_in_a_local_store_requires_a_session(tmp_path: Path) -> None:
    written(tmp_path / "session.json", SESSION)

    done = pdp("approvals", "grant", "a", "--store", f"sqlite:///{tmp_path}/agent.db")

    assert (done.code, done.err) == (
        2, "error: no session file is given\n    hint: name the person with --session FILE, or use --service URL\n",
    )  # fmt: skip


def test_unreachable_service_and_missing_token_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = pdp("approvals", "grant", "a", "--service", "http://127.0.0.1:1")
    monkeypatch.delenv("PDP_TOKEN")
    bare = pdp("approvals", "grant", "a", "--service", "http://127.0.0.1:1")
    plain = pdp("approvals", "list", "--service", "http://policy.example")

    assert gone.code == 1
    assert gone.err == (
        "error: http://127.0.0.1:1: All connection attempts failed\n    more: pdp explain engine.unavailable\n"
    )
    assert (bare.code, bare.err) == (
        2, "error: no token for the service\n    hint: pass a token, or set PDP_TOKEN\n",
    )  # fmt: skip
    assert (plain.code, plain.err) == (
        2,
        ("error: not the address of a decision service\n"
         "    hint: write https://HOST[:PORT][/PATH]; http is allowed for this machine only\n"),
    )  # fmt: skip
