"""Handlers of obligations: what those of the baseline and an application's own derive from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdp.errors import PdpError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ObligationError(PdpError):
    """An obligation that cannot be fulfilled. Before a call it is a DENY; on a result, the result is withheld."""

    code = "obligations.unfulfillable"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the caller gets of a call that ran: its result, markings and retrieval snapshot."""

    result: Any
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None


class ObligationHandler:
    """Fulfils the obligations of one id. Derive from it and override what is needed; shared between threads.

        class Notify(ObligationHandler):
            def check(self, parameters):
                if set(parameters) != {"channel"}:
                    raise ObligationError("notify needs a channel")

            def before(self, parameters, request):
                send(parameters["channel"], request["action"]["name"])

        pep = Pep(manifest, engine, obligations={"notify": Notify()})

    Whatever it raises counts as not fulfilled. Its methods are plain functions, not coroutines.
    """

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise `ObligationError` when it cannot be fulfilled with these parameters; nothing has run yet.

        Also asked when a call is only decided, so it changes nothing.
        """

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Act before the tool runs, or refuse by raising `ObligationError`. `request` is what was decided."""

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:  # noqa: ARG002 - of others
        """Return what is delivered in place of `delivery`; what the tool returned is never changed itself."""
        return delivery
