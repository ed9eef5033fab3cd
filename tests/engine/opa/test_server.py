"""The status of a real OPA, and engines that use an HTTP client of the application."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from opa_client import AsyncOpaClient, OpaClient

from pdp.engine.bundle.file import read_bundle
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.shadow import ShadowEngine
from pdp.errors import UsageError
from pdp.opa.local import local_opa
from tests.support import ROOT
from tests.support.hostile_opa import ALLOW, HostileOpa, Peer, answering, http, result, self_signed
from tests.support.payments import BUNDLE
from tests.support.servers.opa import KINDS, opa_server, url_of

PAYMENTS = read_bundle(BUNDLE)
POLICY = (ROOT / "tests/support/rego_sidecar/decision.rego").read_text()


@pytest.fixture(scope="module", params=KINDS)
def late(request: pytest.FixtureRequest) -> Iterator[OpaClient]:
    """An OPA that has a policy, but still waits for a bundle from a server that does not exist."""
    options = ("--set=services.x.url=http://127.0.0.1:1", "--set=bundles.late.service=x", "--set=status.console=true")
    with opa_server(request.param, *options) as client:
        client.update_policy_from_string(POLICY, "decision.rego", rego_compat=False)
        client.update_or_create_data({"a": 1}, "settings")
        yield client


@pytest.mark.opa
async def test_opa_that_still_waits_for_a_bundle_answers_but_is_reported_unhealthy(late: OpaClient) -> None:
    async with SidecarEngine(client=late) as engine, ShadowEngine(SidecarEngine(client=late), engine) as shadow:
        decision = await engine.adecide_body(b'{"id":"1"}')
        healthy = [await engine.ahealthy(), await shadow.ahealthy()]
        status = await engine.astatus()

    assert (decision.verdict, healthy) == ("ALLOW", [False, False])
    assert status == {
        "url": url_of(late),
        "problems": [f"OPA at {url_of(late)} is not healthy: bundles, plugins"],
        "decides_by": {"revision": None, "release": None},
        "version": "1.22.4",
        "health": {"server": True, "bundles": False, "plugins": False},
        "bundles": {"late": None},
        "plugins": ["bundle: NOT_READY", "discovery: OK", "status: OK"],
        "config": ["bundles", "default_authorization_decision", "default_decision", "labels", "services", "status"],
        "policies": ["decision.rego"],
        "data": ["authz", "settings"],
    }


@pytest.mark.opa
@pytest.mark.parametrize("tcp", [False, True], ids=["Unix socket", "TCP with a token"])
async def test_local_opa_over_tcp_offers_no_config_policies_or_data(opa: Path, tcp: bool) -> None:
    with local_opa(opa, bundle=PAYMENTS, tcp=tcp) as local:
        async with SidecarEngine(local.url, token=local.token) as engine:
            healthy, status = await engine.ahealthy(), await engine.astatus()

    assert (healthy, status["problems"]) == (True, [])
    assert status["decides_by"] == {"revision": PAYMENTS.revision, "release": PAYMENTS.release}
    assert status["bundles"] == {"bundle": PAYMENTS.revision}
    offered = {name for name in ("config", "policies", "data") if status[name] is not None}
    assert offered == (set() if tcp else {"config", "policies", "data"})


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null", b'{"result":[[{}],1]}', b'{"result":{"bundles":[1]}}', b"x"])
async def test_malformed_status_of_opa_is_shown_as_missing(body: bytes) -> None:
    decision = result(ALLOW, b'"provenance":{"version":"1.22.4","bundles":[]}')

    def behave(peer: Peer) -> None:
        while peer.request():
            peer.send(decision if peer.last_request.startswith(b"POST") else http(body))

    with HostileOpa(behave) as opa:
        async with SidecarEngine(opa.url) as engine:
            status = await engine.astatus()

    assert (status["version"], status["bundles"], status["plugins"]) == ("1.22.4", {}, None)


# Engines with a client of the application


@pytest.mark.parametrize("given", [OpaClient, AsyncOpaClient])
def test_headers_and_token_of_the_http_client_of_the_application_are_sent(given: type[Any]) -> None:
    with HostileOpa(answering(result(ALLOW))) as opa:
        host, port = opa.url.removeprefix("http://").split(":")
        client = given(host, int(port), headers={"X-Tenant": "a b"}, token="s3cret", timeout=0.0001)  # noqa: S106
        with SidecarEngine(client=client) as engine:
            verdicts = [engine.decide_body(b"{}").verdict, asyncio.run(engine.adecide_body(b"{}")).verdict]
            if given is OpaClient:
                client._session.headers["X-Tenant"] = "changed later"
            verdicts.append(engine.decide_body(b"{}").verdict)

    assert verdicts == ["ALLOW"] * 3
    sent = {b"X-Tenant: a b", b"Authorization: Bearer s3cret", b"Accept-Encoding: identity"}
    assert [sent <= {*request.split(b"\r\n")} for request in opa.requests] == [True] * 3


async def test_health_check_does_not_follow_a_redirect() -> None:
    with HostileOpa(answering(http(b"{}"))) as other:
        headers = b"Location: %b/health\r\n" % other.url.encode()
        with HostileOpa(answering(http(b"", status=b"302 Found", headers=headers))) as opa:
            async with SidecarEngine(opa.url, token="s3cret") as engine:  # noqa: S106
                assert not await engine.ahealthy()

        assert other.connections == 0


class NotAClient:
    version = "v1"
    headers: Any = None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the engine needs either a url or a client"),
        ({"url": "http://opa", "client": OpaClient()}, "the engine needs either a url or a client"),
        ({"token": "t", "client": OpaClient()}, "the engine needs either a url or a client"),
        ({"client": NotAClient()}, "client: the engine cannot decide with this NotAClient"),
        ({"client": AsyncOpaClient(version="v0")}, "client: the engine cannot decide with this AsyncOpaClient"),
        ({"client": AsyncOpaClient("opa/path")}, "OPA's URL 'http://opa/path:8181' is not valid"),
        ({"client": AsyncOpaClient(ssl="/nowhere.pem")}, "client: `ssl` '/nowhere.pem' is not a PEM file of CA"),
        ({"client": AsyncOpaClient(ssl=__file__)}, f"client: `ssl` {__file__!r} is not a PEM file of CA"),
        ({"client": AsyncOpaClient(ssl=True, cert=("a", "b"))}, "client: `cert` ('a', 'b') is not a PEM cert"),
        ({"client": AsyncOpaClient(ssl=True, cert=__file__)}, f"client: `cert` {__file__!r} is not a PEM certificate"),
        ({"client": AsyncOpaClient(ssl=True, cert=5)}, "client: `cert` 5 is not a PEM certificate with its private"),
        ({"client": AsyncOpaClient(ssl=ssl.create_default_context())}, "client: `ssl` must be a bool or a file's path"),
        *(
            ({"client": AsyncOpaClient(headers={name: value})}, f"client: the engine cannot send the header {name!r}")
            for name, value in (
                ("Content-Length", "1"), ("transfer-encoding", "chunked"), ("Host", "x"), ("Accept-Encoding", "gzip"),
                ("X", "a\r\nY: b"), ("X:", "a"), ("X", ""),
            )
        ),
    ],
)  # fmt: skip
def test_unusable_http_client_of_the_application_is_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SidecarEngine(**arguments)

    assert str(caught.value).startswith(message)


async def test_engine_verifies_certificates_even_if_the_given_http_client_does_not(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with HostileOpa(answering(result(ALLOW)), certificate=certificate) as opa:
        port = int(opa.url.rpartition(":")[2])
        careless = OpaClient("127.0.0.1", port, ssl=True)
        careless._session.verify = False
        trusting = OpaClient("127.0.0.1", port, ssl=str(certificate))
        context = ssl.create_default_context(cafile=certificate)
        for engine, verdict in (
            (SidecarEngine(client=careless), "DENY"),
            (SidecarEngine(client=careless, tls=context), "ALLOW"),
            (SidecarEngine(client=trusting), "ALLOW"),
        ):
            async with engine:
                found = [engine.decide_body(b"{}").verdict, (await engine.adecide_body(b"{}")).verdict]
            assert found == [verdict] * 2

        # A client with `ssl=True` verifies certificates, so the engine needs no check of its own.
        with pytest.raises(requests.exceptions.SSLError):
            OpaClient("127.0.0.1", port, ssl=True, retries=0).get_config()
        async with AsyncOpaClient("127.0.0.1", port, ssl=True, retries=0) as client:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await client.get_config()
