"""Two services on one database change the same approval at once. The audit stream shows which request succeeded."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import httpx
import pytest

from pdp import ApprovalRefusedError
from pdp.audit.verify import verify_chain
from pdp.stores.approvals import Approval, ApprovalState
from tests.approvals.test_approvals import END, OPENED, SOON, body, entry
from tests.service.approvals.elsewhere import Elsewhere, elsewhere
from tests.support import at_once
from tests.support.payments import ARGUMENTS
from tests.support.postgres import DATABASES, empty_database
from tests.support.service import APPROVER, OFFICER, RunningService, running_service

pytestmark = pytest.mark.process

VICE = {**APPROVER, "sub": "vice"}
FACTS = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}

_numbers = count()


class Race(NamedTuple):
    """Two services in separate processes on one database, which the test also opens."""

    services: tuple[RunningService, RunningService]
    here: Elsewhere

    def clients(self, scopes: list[str], *people: dict[str, Any]) -> list[httpx.Client]:
        """Return two clients for each person: one client of each service."""
        return [service.client(scopes, claims) for claims in people for service in self.services]

    def asked(self) -> tuple[str, dict[str, Any]]:
        """Propose a new wire. Return the approval's id, and the proposal, so that the test can repeat the call."""
        number = next(_numbers)
        proposal = {"tool": "initiate_wire", "arguments": {**ARGUMENTS, "reference": f"INV-{number}"}}
        wanted = {"proposal": proposal, "session": {"facts": FACTS, "idempotency_key": f"idm-{number}"}}
        answer = self.services[0].client(["propose", "assert"]).post("/v1/proposals", json=wanted).json()
        return answer["approval"]["id"], wanted

    def steps(self, approval_id: str) -> Counter[str]:
        """Count the audit events about an approval by type, after verifying the hash chain of the stream."""
        rows = self.here.audit.lines(-1, 100_000)
        assert verify_chain([row.line.encode() for row in rows]) == len(rows)
        taken: Counter[str] = Counter()
        for row in rows:
            if row.approval_id == approval_id:
                taken[row.type] += {None: 1, "failed": -1}[json.loads(row.line)["outcome"]]
        return +taken


@pytest.fixture(scope="module", params=DATABASES)
def race(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    folders = [tmp_path_factory.mktemp("service") for _ in range(2)]
    url = empty_database(request.param, folders[0])
    with ExitStack() as owned:
        first, second = (owned.enter_context(running_service(folder, url=url)) for folder in folders)
        yield Race((first, second), owned.enter_context(elsewhere(url)))


def answers(posts: list[Callable[[], httpx.Response]]) -> Counter[object]:
    """Send all requests at once, and count the answers by error code, or by status if there is no error code."""
    given = [(answer.status_code, answer.json().get("error", {}).get("code")) for answer in at_once(posts)]
    return Counter(code or status for status, code in given)


def test_only_one_of_several_simultaneous_grants_succeeds(race: Race) -> None:
    clients = race.clients(["approve"], APPROVER, VICE)
    for _ in range(2):
        approval_id, _ = race.asked()
        path = f"/v1/approvals/{approval_id}/grant"
        assert answers([partial(client.post, path) for client in clients]) == {200: 1, "approvals.not_pending": 3}
        assert race.steps(approval_id) == {"approval.opened": 1, "approval.granted": 1}
        assert len(race.here.approvals.get(approval_id).grants) == 1


def test_simultaneous_grants_of_one_person_count_once_for_the_quorum(race: Race) -> None:
    clients = race.clients(["approve"], APPROVER, VICE)
    for _ in range(2):
        approval = pending(race, time=None, quorum=2)
        path = f"/v1/approvals/{approval.id}/grant"
        given = answers([partial(client.post, path) for client in clients])
        assert given[200] == 2
        assert given.keys() <= {200, "approvals.already_granted", "approvals.not_pending"}
        assert race.steps(approval.id) == {"approval.opened": 1, "approval.granted": 2}
        granted = race.here.approvals.get(approval.id)
        assert (granted.state, {grant.sub for grant in granted.grants}) == ("granted", {"approver-7", "vice"})


def test_approval_granted_and_denied_at_once_ends_as_denied(race: Race) -> None:
    granting, denying = race.clients(["approve"], APPROVER)
    for _ in range(2):
        approval_id, _ = race.asked()
        path = f"/v1/approvals/{approval_id}"
        given = answers([partial(granting.post, f"{path}/grant"), partial(denying.post, f"{path}/deny")])
        # A granted approval can be denied until a call uses the approval, but a denied approval cannot be granted. So
        # the approval ends as denied.
        granted = given[200] - 1
        assert given == Counter({200: 1 + granted}) + Counter({"approvals.not_pending": 1 - granted})
        assert race.steps(approval_id) == +Counter(
            {"approval.opened": 1, "approval.granted": granted, "approval.denied": 1}
        )
        assert race.here.approvals.get(approval_id).state == "denied"


def test_approval_granted_while_it_expires_ends_as_expired(race: Race) -> None:
    with elsewhere(race.services[0].store) as other:
        for _ in range(4):
            approval = pending(race, time=OPENED)
            grant = partial(race.here.approvals.grant, approval.id, APPROVER, SOON)
            granted, _ = at_once([partial(was_taken, step) for step in (grant, partial(other.approvals.sweep, END))])
            other.approvals.sweep(END)
            assert race.here.approvals.get(approval.id).state == "expired"
            assert race.steps(approval.id) == +Counter(
                {"approval.opened": 1, "approval.granted": int(granted), "approval.expired": 1}
            )


def test_only_one_of_several_simultaneous_calls_uses_the_approval(race: Race) -> None:
    clients = race.clients(["propose", "assert"], OFFICER, OFFICER)
    for _ in range(2):
        approval_id, wanted = race.asked()
        race.services[0].client(["approve"], APPROVER).post(f"/v1/approvals/{approval_id}/grant")
        given = [answer.json() for answer in at_once([partial(run, client, wanted) for client in clients])]
        assert Counter((answer["begun"], answer["replayed"]) for answer in given) == {
            (True, False): 1,
            (False, True): 3,
        }
        assert race.steps(approval_id) == {"approval.opened": 1, "approval.granted": 1, "approval.consumed": 1}
        assert race.here.approvals.get(approval_id).state is ApprovalState.CONSUMED


def test_approval_withdrawn_and_used_at_once_has_one_outcome(race: Race) -> None:
    using, withdrawing = race.clients(["propose", "assert"], OFFICER)
    for _ in range(3):
        approval_id, wanted = race.asked()
        race.services[0].client(["approve"], APPROVER).post(f"/v1/approvals/{approval_id}/grant")
        used, withdrawn = at_once(
            [partial(proposed, using, wanted), partial(withdrawing.post, f"/v1/approvals/{approval_id}/withdraw")]
        )
        begun = used.json()["begun"]
        expected = (409, "consumed", "approval.consumed") if begun else (200, "withdrawn", "approval.withdrawn")
        state = race.here.approvals.get(approval_id).state
        assert (withdrawn.status_code, state) == expected[:2]
        assert race.steps(approval_id) == {"approval.opened": 1, "approval.granted": 1, expected[2]: 1}


def run(client: httpx.Client, wanted: dict[str, Any]) -> httpx.Response:
    """Propose a call. If the call begins, report its result, because repeated calls wait for this result."""
    answer = proposed(client, wanted)
    if answer.json()["begun"]:
        done = {"execution": {"started": True, "result": {"wire_id": "wire-1"}}}
        assert client.post(f"/v1/proposals/{answer.json()['id']}/result", json=done).status_code == 200
    return answer


def proposed(client: httpx.Client, wanted: dict[str, Any]) -> httpx.Response:
    return client.post("/v1/proposals", json=wanted)


def pending(race: Race, time: str | None, **approval: Any) -> Approval:
    """Propose a new call and return its pending approval."""
    purpose = f"number {next(_numbers)}"
    return race.here.approvals.open(body(time=time, purpose=purpose), entry(**approval), ["approvals.required"])


def was_taken(step: Callable[[], object]) -> bool:
    try:
        step()
    except ApprovalRefusedError:
        return False
    return True
