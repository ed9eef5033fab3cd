"""The stores that a URL names. `STORES` is the one list of them; code, scripts and tests derive theirs from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from pdp.errors import UsageError

if TYPE_CHECKING:  # whoever only reads a URL loads no store; the databases are an optional extra
    from pdp.ledger.ledger import LedgerStore
    from pdp.stores.actions import ActionStore
    from pdp.stores.budgets import BudgetStore
    from pdp.stores.keys import IdempotencyStore
    from pdp.stores.sql.audit import SqlAudit
    from pdp.stores.sql.records import SqlApprovals, SqlRemoteCalls
    from pdp.stores.sql.tokens import SqlTokens, SqlWebhooks


class StoreScheme(NamedTuple):
    """How the stores of one URL scheme are opened.

    `opener` is `MODULE:FUNCTION`, imported when it is needed. The function takes `url` and `upgrade`, and returns the
    attributes of `OpenStores` that the place has, by their names. `is_file`: the URL is `SCHEME:///PATH`.
    """

    opener: str
    is_file: bool = False


STORES: Final = {
    "sqlite": StoreScheme("pdp.stores.sql.opened:database_stores", is_file=True),
    "postgresql": StoreScheme("pdp.stores.sql.opened:database_stores"),
}


def _scheme(url: str) -> StoreScheme:
    # `sqlite+pysqlite` names a driver too. A database's own check says what is wrong with any other URL.
    return STORES.get(url.partition(":")[0].partition("+")[0], STORES["postgresql"])


def with_file_in(folder: Path, url: str) -> str:
    """Return the URL of a store; the path of a file in it is relative to `folder`."""
    start, mark, path = url.partition(":///")
    is_path = _scheme(url).is_file and path and path != ":memory:"
    return start + mark + str(folder.absolute() / path) if is_path else url


class OpenStores:
    """The stores of one place, until `close`. `name` is the URL for people, its password hidden.

    Args:
        url: a scheme of `STORES` and what follows it.
        upgrade: make what is absent, or bring it up to date; None: do so for a file.

    Errors as of `Database.open`. MissingExtraError: what the store needs is not installed. UsageError: it has none of
    that kind.
    """

    name: str
    keys: IdempotencyStore
    actions: ActionStore
    approvals: SqlApprovals
    ledger: LedgerStore
    budgets: BudgetStore
    tokens: SqlTokens
    webhooks: SqlWebhooks
    remote_calls: SqlRemoteCalls
    open_audit: Callable[..., SqlAudit]
    check: Callable[[], str]
    close: Callable[[], None]

    def __init__(self, url: str, *, upgrade: bool | None = False) -> None:
        scheme = _scheme(url)
        opener: Callable[..., dict[str, Any]] = resolve_name(scheme.opener)
        vars(self).update(opener(url, upgrade=scheme.is_file if upgrade is None else upgrade))

    def __getattr__(self, name: str) -> NoReturn:
        if name in OpenStores.__annotations__:
            raise UsageError(f"the store {self.name} has no {name}", hint="use a database: sqlite:/// or postgresql://")
        raise AttributeError(name)
