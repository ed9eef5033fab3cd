"""Ask an OPA for its health, status, configuration, policies and data, with opa-python-client.

Also reads the settings of an application's client, for an engine that decides with it.
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

# Headers that HTTP framing or content negotiation needs are refused.
_HEADER: Final = re.compile(
    r"(?!(?:accept.*|connection|content-.*|expect|host|te|trailer|transfer-.*|upgrade):)[\w-]+: [!-~](?:[ -~]*[!-~])?",
    re.ASCII | re.IGNORECASE,
)


def settings_of(client: BaseClient) -> tuple[str, dict[str, str], ssl.SSLContext | None]:
    """Return the URL, the headers and the TLS settings of a client; UsageError: the engine cannot decide with it.

    Certificates are always verified, also where the session of the client does not.
    """
    if not isinstance(client, BaseClient) or client.version != "v1":
        hint = "give an OpaClient or AsyncOpaClient of opa-python-client, with version v1"
        raise UsageError(f"client: the engine cannot decide with this {type(client).__name__}", hint=hint)
    headers = dict(client.headers or {})
    for name, value in headers.items():
        if not _HEADER.fullmatch(f"{name}: {value}"):
            raise UsageError(f"client: the engine cannot send the header {name!r:.60}", hint="remove it from `headers`")
    tls = None
    if not isinstance(client.ssl, bool | str):
        raise UsageError("client: `ssl` is not a file of certificates", hint="give a context as `tls` of the engine")
    if client.ssl:
        try:
            tls = ssl.create_default_context(cafile=client.ssl if isinstance(client.ssl, str) else None)
            if client.cert:
                tls.load_cert_chain(*([client.cert] if isinstance(client.cert, str) else client.cert))
        except (OSError, TypeError, ValueError) as error:
            raise UsageError(f"client: a certificate cannot be used: {error}", hint="check `ssl` and `cert`") from error
    host = f"[{client.host}]" if ":" in client.host else client.host
    return f"{client.schema}{host}:{client.port}", headers, tls


class ServerClient(AsyncOpaClient):  # type: ignore[misc] # it has no types
    """opa-python-client with the address, headers and TLS settings of the engine's client, Unix sockets included."""

    def __init__(self, client: OpaClient, seconds: float) -> None:
        address = client.address
        host = f"[{address.host}]" if ":" in address.host else address.host
        super().__init__(host, address.port or 80, ssl=address.tls, retries=0, timeout=seconds)
        self._of = client

    async def _init_session(self) -> None:
        self._session = new_session(self._of, self.timeout)

    def _request(self, method: str, url: str, **options: Any) -> Any:
        # A redirect would carry the token to another server. OPA redirects paths with a slash at the end.
        return super()._request(method, url.rstrip("/"), **options, allow_redirects=False)

    async def status(self, provenance: dict[str, Any]) -> dict[str, Any]:
        """Return what OPA says about itself, beside the `provenance` of a decision; None: OPA does not offer it."""
        server, bundles, plugins, status, config, policies, data = await asyncio.gather(
            self.check_health(), self.check_health({"bundles": "true"}), self.check_health({"plugins": "true"}),
            _offered(self.get_status()), _offered(self.get_config()), _offered(self.get_policies_list()),
            _offered(self.get_data()),
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


async def _offered(asked: Awaitable[Any]) -> Any:
    try:
        answer = await asked
    except Exception:  # noqa: BLE001 - the errors of opa-python-client have no class in common
        return None
    return answer.get("result") if isinstance(answer, dict) else answer
