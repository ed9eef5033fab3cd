"""Ask an OPA server for its health, status, configuration, policies and data, with opa-python-client.

Also reads the settings of an application's opa-python-client, so that an engine can use the same OPA server.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable
from typing import Any, Final

from pdp.engine.opa.aio import new_session
from pdp.engine.opa.client import OpaClient
from pdp.errors import UsageError
from pdp.installed import extra

with extra("sidecar"):
    from opa_client.base import BaseClient
    from opa_client.opa_async import AsyncOpaClient

# A user must not set these headers, because they control HTTP framing or content negotiation.
_HEADER: Final = re.compile(
    r"(?!(?:accept.*|connection|content-.*|expect|host|te|trailer|transfer-.*|upgrade):)[\w-]+: [!-~](?:[ -~]*[!-~])?",
    re.ASCII | re.IGNORECASE,
)


def settings_of(client: BaseClient) -> tuple[str, dict[str, str], ssl.SSLContext | None]:
    """Return the URL, headers and TLS settings of an opa-python-client. Raises `UsageError` for an unusable client.

    Certificates are always verified, even if the client itself does not verify certificates.
    """
    if not isinstance(client, BaseClient) or client.version != "v1":
        hint = "pass an OpaClient or AsyncOpaClient of opa-python-client, with version v1"
        raise UsageError(f"client: the engine cannot decide with this {type(client).__name__}", hint=hint)
    headers = dict(client.headers or {})
    for name, value in headers.items():
        if not _HEADER.fullmatch(f"{name}: {value}"):
            raise UsageError(f"client: the engine cannot send the header {name!r:.60}", hint="remove it from `headers`")
    tls = None
    if not isinstance(client.ssl, bool | str):
        raise UsageError(
            "client: `ssl` must be a bool or a file's path", hint="pass an SSLContext as `tls` of the engine"
        )
    if client.ssl:
        name, expected = "ssl", "a PEM file of CA certificates"
        try:
            tls = ssl.create_default_context(cafile=client.ssl if isinstance(client.ssl, str) else None)
            name, expected = "cert", "a PEM certificate with its private key"
            if client.cert:
                tls.load_cert_chain(*([client.cert] if isinstance(client.cert, str) else client.cert))
        except (OSError, TypeError, ValueError) as error:
            # OpenSSL's own messages, such as "PEM lib", are not shown because they do not help the user.
            words = f": {error.strerror}" if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else ""
            shown = f"client: `{name}` {getattr(client, name)!r:.200} is not {expected}{words}"
            raise UsageError(shown, hint="check the paths and contents of the files") from error
    host = f"[{client.host}]" if ":" in client.host else client.host
    return f"{client.schema}{host}:{client.port}", headers, tls


class ServerClient(AsyncOpaClient):  # type: ignore[misc] # opa-python-client has no types
    """An opa-python-client with the engine's address (also a Unix socket), headers and TLS settings."""

    def __init__(self, client: OpaClient, seconds: float) -> None:
        address = client.address
        host = f"[{address.host}]" if ":" in address.host else address.host
        super().__init__(host, address.port or 80, ssl=address.tls, retries=0, timeout=seconds)
        self._of = client

    async def _init_session(self) -> None:
        self._session = new_session(self._of, self.timeout)

    def _request(self, method: str, url: str, **options: Any) -> Any:
        # OPA redirects paths with a final slash. Redirects are rejected, because they would send the token to another
        # server.
        return super()._request(method, url.rstrip("/"), **options, allow_redirects=False)

    async def status(self, provenance: dict[str, Any]) -> dict[str, Any]:
        """Return OPA's status. `provenance` is part of OPA's answer to a decision. None marks unavailable details."""
        server, bundles, plugins, status, config, policies, data = await asyncio.gather(
            self.check_health(), self.check_health({"bundles": "true"}), self.check_health({"plugins": "true"}),
            _result(self.get_status()), _result(self.get_config()), _result(self.get_policies_list()),
            _result(self.get_data()),
        )  # fmt: skip
        configured, loaded = _object(_object(config).get("bundles")), _object(provenance.get("bundles"))
        states = _object(_object(status).get("plugins"))
        return {
            "version": provenance.get("version"),
            "health": {"server": server, "bundles": bundles, "plugins": plugins},
            "bundles": {name: _object(loaded.get(name)).get("revision") for name in sorted({*configured, *loaded})},
            "plugins": [f"{name}: {_object(states[name]).get('state')}" for name in sorted(states)] or None,
            "config": _names(config),
            "policies": _names(policies),
            "data": _names(data),
        }


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(value: Any) -> list[str] | None:
    return sorted(map(str, value)) if isinstance(value, dict | list) else None


async def _result(request: Awaitable[Any]) -> Any:
    try:
        answer = await request
    except Exception:  # noqa: BLE001 - opa-python-client's errors have no common base class
        return None
    return answer.get("result") if isinstance(answer, dict) else answer
