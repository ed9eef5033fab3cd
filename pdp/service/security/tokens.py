"""Tokens of our own: made, hashed, stored, looked up, revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pdp.service.security.principal import Authenticator
    from pdp.service.settings import ServiceSettings
    from pdp.service.tenant import Tenant

COOKIE: Final = "pdp_session"


def authenticators_of(settings: ServiceSettings, tenants: dict[str, Tenant], owned: ExitStack) -> list[Authenticator]:
    """Return who knows the tokens that count."""
    del settings, tenants, owned
    return []
