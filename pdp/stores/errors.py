"""What can go wrong with a store.

* StoreError          store.unavailable   it could not be read or written; nothing may run on it
  - StoreFullError    store.full          a store in memory is full of what it must not forget
* StoreSchemaError    store.schema        another release made the database: `pdp db upgrade`, or a newer pdp
"""

from __future__ import annotations

from pdp.errors import StateError, UsageError


class StoreError(StateError):
    """The store could not be read or written. What it was asked for counts as not done."""

    code = "store.unavailable"


class StoreFullError(StoreError):
    """A store in memory is full of what must not be forgotten."""

    code = "store.full"


class StoreSchemaError(UsageError):
    """The tables of the database are not those that this release works with."""

    code = "store.schema"
