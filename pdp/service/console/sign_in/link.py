"""The one-time link of `pdp console`, which opens a session for the person of a session file."""

import hmac
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pdp.service.console.page import PREFIX, ConsoleRoute, redirect
from pdp.service.console.sign_in.session import begin_session
from pdp.service.console.texts import text
from pdp.service.errors import HttpError
from pdp.service.security.principal import Principal, Scope
from pdp.service.settings import DEFAULT_TENANT
from pdp.service.state import Service

MINUTES: Final = 10
"""The link works for this many minutes."""

_LINK: Final = "/console/link/"
_SOCKETS: Final = Path("/proc/net/tcp")
_ESTABLISHED: Final = "01"
_SCOPES: Final = frozenset((Scope.APPROVE, Scope.AUDIT, Scope.DECIDE, Scope.PROPOSE))

router = APIRouter(route_class=ConsoleRoute)


class OneTimeLink:
    """A link that opens one session, for the person in `claims`. The session ends with the process."""

    def __init__(self, claims: Mapping[str, Any]) -> None:
        self._secret = secrets.token_urlsafe(32)
        self._until = time.monotonic() + MINUTES * 60
        self._principal: Principal | None = Principal(
            f"pdp console {secrets.token_hex(8)}", DEFAULT_TENANT, _SCOPES, claims
        )
        self.opened: str | None = None

    def address(self, url: str) -> str:
        """Return the address of the link at the service with this URL."""
        return f"{url}{_LINK}{self._secret}"

    def take(self, secret: str) -> Principal | None:
        """Return the principal if this is the secret of a link that is neither used nor expired."""
        if time.monotonic() > self._until or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            return None
        principal, self._principal = self._principal, None
        return principal

    def admits(self, request: Request) -> bool:
        """Return whether a process of this user, or of root, holds the connection of a request. Only Linux tells it.

        Other users of this machine can read the link in the arguments of the browser, and a server of theirs on another
        port of 127.0.0.1 gets the session's cookie if the person opens it.
        """
        try:
            lines = _SOCKETS.read_text(encoding="ascii").splitlines()
        except OSError:
            return True
        ends = [_place_of(*request.scope[side]) for side in ("client", "server")]
        found = (fields for fields in map(str.split, lines) if fields[1:4] == [*ends, _ESTABLISHED])
        return any(int(fields[7]) in (0, os.getuid()) for fields in found)

    async def end(self, service: Service) -> None:
        """End the session that the link has opened."""
        if self.opened is not None:
            await service.tokens.revoke(self.opened, DEFAULT_TENANT)


def _place_of(host: str, port: int) -> str:
    """Return an IPv4 address and a port as Linux lists them."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


@router.get(f"{_LINK}{{secret}}")
async def open_link(request: Request, secret: str) -> Response:
    """Open the session of the link."""
    link: OneTimeLink | None = request.app.state.link
    principal = link.take(secret) if link is not None else None
    answer = redirect(PREFIX)
    if link is not None and principal is not None:
        link.opened = await begin_session(request, principal, answer)
    elif request.state.viewer is None:
        raise HttpError(403, text("sign_in.link_used"), hint=text("sign_in.link_hint"))
    return answer
