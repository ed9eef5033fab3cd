"""What can go wrong with what is kept.

* StoreError             store.unavailable   it could not be read or written; whoever was about to run a tool must not
  - StoreFullError       store.full          a store in memory holds as much as it may, and may forget none of it
* SchemaError            store.schema        the database was made by another release: `pdp db upgrade`, or a newer pdp
"""

from __future__ import annotations

from pdp.errors import StateError, UsageError


class StoreError(StateError):
    """The store could not be read or written. What it was asked for counts as not done."""

    code = "store.unavailable"


class StoreFullError(StoreError):
    """A store in memory is full of what must not be forgotten."""

    code = "store.full"


class SchemaError(UsageError):
    """The tables of the database are not those that this release works with."""

    code = "store.schema"
