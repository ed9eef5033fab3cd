"""Opens the stores that a URL names. `STORES` lists the supported URL schemes; code, scripts and tests use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from pdp.errors import UsageError

if TYPE_CHECKING:  # This module imports no store, so that reading a URL does not need the optional extra for databases.
    from pdp.ledger.ledger import LedgerStore
    from pdp.stores.actions import ActionStore
    from pdp.stores.keys import IdempotencyStore
    from pdp.stores.sql.audit import SqlAudit
    from pdp.stores.sql.budgets import SqlBudgets
    from pdp.stores.sql.records import SqlApprovals, SqlRemoteCalls
    from pdp.stores.sql.requests import SqlRequests
    from pdp.stores.sql.tokens import SqlTokens, SqlWebhooks


class StoreScheme(NamedTuple):
    """How to open the stores of URLs with one scheme. With `is_file`, the URL has the form `SCHEME:///PATH`."""

    opener: str  # `MODULE:FUNCTION`; takes `url` and `upgrade`, and returns attributes of `OpenStores`.
    is_file: bool = False


STORES: Final = {
    "sqlite": StoreScheme("pdp.stores.sql.opened:database_stores", is_file=True),
    "postgresql": StoreScheme("pdp.stores.sql.opened:database_stores"),
}


def _scheme(url: str) -> StoreScheme:
    # A scheme such as `sqlite+pysqlite` also names a driver. For an unknown scheme, the database reports the fault.
    return STORES.get(url.partition(":")[0].partition("+")[0], STORES["postgresql"])


def with_file_in(folder: Path, url: str) -> str:
    """Return the URL with its file path, if any, made absolute from `folder`."""
    start, mark, path = url.partition(":///")
    is_path = _scheme(url).is_file and path and path != ":memory:"
    return start + mark + str(folder.absolute() / path) if is_path else url


class OpenStores:
    """The stores that a URL names, open until `close`. `name` is the URL for display, with its password hidden.

    `url` has a scheme of `STORES`. `upgrade` creates or upgrades the tables; None creates or upgrades files only.
    Raises as `Database.open`, `MissingExtraError` without a package, and `UsageError` for stores that `url` lacks.
    """

    name: str
    keys: IdempotencyStore
    actions: ActionStore
    approvals: SqlApprovals
    ledger: LedgerStore
    budgets: SqlBudgets
    tokens: SqlTokens
    webhooks: SqlWebhooks
    remote_calls: SqlRemoteCalls
    requests: SqlRequests
    open_audit: Callable[..., SqlAudit]
    check: Callable[[], str]
    counts: Callable[[float], dict[str, dict[str, float]]]
    keys_unknown: Callable[[float], int]
    close: Callable[[], None]

    def __init__(self, url: str, *, upgrade: bool | None = False) -> None:
        scheme = _scheme(url)
        opener: Callable[..., dict[str, Any]] = resolve_name(scheme.opener)
        vars(self).update(opener(url, upgrade=scheme.is_file if upgrade is None else upgrade))

    def __getattr__(self, name: str) -> NoReturn:
        if name in OpenStores.__annotations__:
            raise UsageError(f"the store {self.name} has no {name}", hint="use a database: sqlite:/// or postgresql://")
        raise AttributeError(name)
