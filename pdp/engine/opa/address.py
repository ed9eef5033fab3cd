"""Where an OPA listens: a URL, read strictly."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pdp.errors import UsageError

MAX_SOCKET_PATH: Final = 103
"""Longest path of a Unix socket that every system takes, in bytes."""

_HINT: Final = "give http://HOST:PORT, https://HOST:PORT or unix:///PATH"
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to.

    Attributes:
        url: for messages; it holds no secret, as URLs with user or password are refused.
        path: of the Unix socket; None for TCP.
        host: name or IP address, "localhost" for a Unix socket.
        port: TCP port, 0 for a Unix socket.
        tls: whether to speak TLS.
    """

    url: str
    path: str | None
    host: str
    port: int
    tls: bool


def parse_address(url: str) -> Address:
    """Read the URL of an OPA server.

    Args:
        url: `http://HOST:PORT` or `https://HOST:PORT`, the port being 80 or 443 if absent, or `unix:///PATH`.

    Raises:
        UsageError: anything else: also a path, a query, or a user and password behind the host.
    """
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UsageError("OPA's address holds a user or a password", hint="give a token instead")
    shown = repr(url[:100])
    if not url.isprintable() or "?" in url or "#" in url:
        raise UsageError(f"OPA's address {shown} has parts that it must not have", hint=_HINT)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"OPA's address {shown} is not a URL: {error}", hint=_HINT) from error
    if parts.scheme == "unix":
        return _unix(parts.netloc, parts.path, shown)
    if parts.scheme not in _PORTS:
        raise UsageError(f"OPA's address {shown} has an unknown scheme", hint=_HINT)
    if parts.path not in ("", "/"):
        raise UsageError(f"OPA's address {shown} has a path", hint=_HINT)
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or port == 0:
        raise UsageError(f"OPA's address {shown} has no valid host or port", hint=_HINT)
    return Address(url.rstrip("/"), None, host, port or _PORTS[parts.scheme], parts.scheme == "https")


def _unix(netloc: str, path: str, shown: str) -> Address:
    if netloc or not path.startswith("/") or path.endswith("/"):
        raise UsageError(f"OPA's address {shown} names no absolute path of a socket", hint=_HINT)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise UsageError(
            f"OPA's address {shown} is longer than a socket's path may be", hint=f"at most {MAX_SOCKET_PATH} bytes"
        )
    return Address(f"unix://{path}", path, "localhost", 0, tls=False)
