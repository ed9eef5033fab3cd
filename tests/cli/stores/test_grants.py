"""`pdp grants`, `pdp approvals grant --for` and the endpoints `/v1/grants` make, show and revoke the same grants."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp.client.client import Client, ServiceError
from tests.support import ROOT
from tests.support.command_line import pdp, written
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.process

CLERK = {"sub": "clerk", "scope": "desk.write"}
LEAD = {"sub": "lead", "roles": ["desk.lead"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("served")
    files = {
        "manifest": str(ROOT / "tests/scenarios/grants.yaml"),
        "governance": str(ROOT / "tests/scenarios/grants-governance.yaml"),
    }
    tenant = {"project": str(written(folder / "pdp.yaml", files))}
    with running_service(folder, tenant=tenant, limits={"page": 1}) as service:
        yield service


def proposed(served: RunningService, text: str, recipient: str = "bob") -> dict[str, Any]:
    call = {"tool": "send_notice", "arguments": {"recipient": recipient, "text": text}}
    answer = served.client(["propose"], CLERK).post(
        "/v1/proposals", json={"proposal": call, "session": {"run_id": "run-1"}}
    )
    return dict(answer.json())


def test_grant_is_made_shown_and_revoked_on_the_command_line(
    served: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    approval = proposed(served, "one")["approval"]["id"]
    lead = written(tmp_path / "lead.json", {"claims": LEAD})
    monkeypatch.setenv("PDP_DATABASE_URL", served.store)
    shown = pdp("approvals", "show", approval)
    assert "  may last   run or until, for at most 30 days\n  limited to recipient = bob\n" in shown.out
    refused = pdp("approvals", "grant", approval, "--session", lead, "--for", "P31D")
    assert (refused.code, "cannot reach that far" in refused.err) == (1, True)
    bad = pdp("approvals", "grant", approval, "--session", lead, "--for", "ever")
    assert (bad.code, "write `run`, or a duration: P7D, PT4H" in bad.err) == (2, True)
    assert pdp("approvals", "grant", approval, "--session", lead, "--for", "P7D").code == 0

    assert [proposed(served, text)["verdict"] for text in ("one", "two")] == ["ALLOW"] * 2
    listed = pdp("grants", "list")
    assert listed.out.startswith(
        f"{approval}  active  send_notice for clerk: recipient = bob; every run, 1 of 2 uses left"
    )
    assert "  granted    by lead at " in pdp("grants", "show", approval).out
    other = written(tmp_path / "other.json", {"claims": {"sub": "other"}})
    assert pdp("grants", "revoke", approval, "--session", other).code == 1
    revoked = pdp("grants", "revoke", approval, "--session", lead, "--why", "bob left", "--json")
    assert (revoked.json["state"], revoked.json["closed_by"]["sub"]) == ("revoked", "lead")
    assert "  reason     bob left\n" in pdp("grants", "show", approval).out
    assert proposed(served, "four")["verdict"] == "STEP_UP"
    assert (pdp("grants", "list").out, pdp("grants", "show", "none").code) == ("no active grants\n", 1)


def test_grant_is_made_shown_and_revoked_over_http(served: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    approval = proposed(served, "one", "ann")["approval"]["id"]
    clerk, stranger = (served.client(["propose"], claims) for claims in (CLERK, {"sub": "stranger"}))
    forbidden = clerk.post(f"/v1/approvals/{approval}/grant", json={"reach": "run"})
    assert forbidden.status_code == 403
    with Client(served.url, token=served.token(["approve"], LEAD)) as client:
        with pytest.raises(ServiceError) as caught:
            client.approvals.grant(approval, reach="until", until="9999-01-01T00:00:00Z")
        assert (caught.value.status, caught.value.error_code) == (409, "approvals.reach")
        assert client.approvals.grant(approval, reach="run").reach == "run"
        assert proposed(served, "two", "ann")["verdict"] == "ALLOW"
        assert [grant["id"] for grant in client.grants(active=True)["grants"]] == [approval]
        assert client.grant(approval) == clerk.get(f"/v1/grants/{approval}").json()
        assert stranger.get(f"/v1/grants/{approval}").status_code == 404
        assert stranger.get("/v1/grants").json()["grants"] == []

        monkeypatch.setenv("PDP_TOKEN", served.token(["propose"], CLERK))
        assert pdp("grants", "show", approval, "--service", served.url).code == 0
        assert pdp("grants", "revoke", approval, "--service", served.url).out.startswith(f"revoked  {approval}\n")
        second = client.approvals.grant(proposed(served, "one", "ben")["approval"]["id"], reach="run").id
        # One page of this service has one grant.
        listed = pdp("grants", "list", "--all", "--service", served.url, "--json").json
        assert {approval, second} <= {grant["id"] for grant in listed}
        with pytest.raises(ServiceError) as caught:
            client.revoke(approval, "no longer needed")
        assert (caught.value.status, caught.value.error_code) == (409, "service.conflict")
    assert proposed(served, "three", "ann")["verdict"] == "STEP_UP"
