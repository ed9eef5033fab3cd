"""Access to the stores of a running service from the test, as if the test were a second service."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from pdp import Approvals, Pep
from pdp.stores.approvals import Approval
from pdp.stores.url import OpenStores
from tests.support.payments import effective, engine, session, wire
from tests.support.service import OFFICER


class Elsewhere:
    """Opens the stores of the service a second time, as another process would."""

    def __init__(self, stores: OpenStores) -> None:
        self.audit = stores.open_audit(None)
        self.tokens = stores.tokens
        self.pep = Pep(
            effective(), engine(), audit=self.audit, keys=stores.keys, actions=stores.actions,
            approvals=Approvals(stores.approvals), ledger=stores.ledger, budgets=stores.budgets,
        )  # fmt: skip

    @property
    def approvals(self) -> Approvals:
        assert self.pep.approvals is not None
        return self.pep.approvals

    def opened(self, claims: dict[str, Any] = OFFICER, **changes: Any) -> Approval:
        approval = self.pep.call(wire(), session(**{"time": None, "claims": claims, **changes})).approval
        assert approval is not None
        return approval

    def events(self) -> list[tuple[int, str, str | None]]:
        return [(row.seq, row.type, row.approval_id) for row in self.audit.lines(-1, 1000, approvals_only=True)]


@contextmanager
def elsewhere(url: str) -> Iterator[Elsewhere]:
    with closing(OpenStores(url)) as stores:
        other = Elsewhere(stores)
        with closing(other.audit):
            yield other
