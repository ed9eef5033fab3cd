"""The client on the wire: what is an answer of the service, what is an error with its code, and what is asked twice."""

import asyncio
import logging
import os
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp import Client, PdpError
from pdp.client.client import MAX_ANSWER, ServiceError
from pdp.errors import UsageError
from tests.support import at_once
from tests.support.hostile_opa import HostileOpa, Peer, answering, http, self_signed

TOKEN = "pdp_0123456789abcdefSECRET-secret_0"  # noqa: S105 - nobody's
REQUEST = {"subject": {"type": "user", "id": "a"}, "action": {"name": "b"}, "resource": {"type": "c", "id": "d"}}
YES = http(b'{"decision":true}')
UNAVAILABLE = http(
    b'{"error":{"code":"service.unavailable","message":"down"}}', status=b"503 No", headers=b"Retry-After: 1\r\n"
)


def error(status: bytes, code: bytes, hint: bytes = b"") -> bytes:
    return http(b'{"error":{"code":"%b","message":"so it is"%b}}' % (code, hint), status=status)


def asked(server: HostileOpa) -> list[str]:
    """The first line of each request that came."""
    return [request.partition(b"\r\n")[0].decode() for request in server.requests]


def evaluated(server: HostileOpa, **options: Any) -> tuple[Any, Any]:
    """What an evaluation gives, asked synchronously and asynchronously; of an error, its class, code and message."""

    def of(error: PdpError) -> tuple[str, str, str]:
        return type(error).__name__, error.code, str(error).replace(server.url, "URL")

    async def aevaluate() -> Any:
        with Client(server.url, token=TOKEN, **options) as client:
            try:
                return await client.asynchronous.evaluate(REQUEST)
            except PdpError as error:
                return of(error)

    with Client(server.url, token=TOKEN, **options) as client:
        try:
            found: Any = client.evaluate(REQUEST)
        except PdpError as error:
            found = of(error)
    return found, asyncio.run(aevaluate())


def test_a_request_is_what_the_service_reads_and_threads_and_tasks_share_a_connection() -> None:
    with HostileOpa(answering(YES)) as server, Client(server.url + "/base/", token=TOKEN) as client:
        found = [client.evaluate(REQUEST), asyncio.run(_awaited(client)), *at_once([lambda: client.evaluate(REQUEST)])]

    assert found == [{"decision": True}] * 3
    assert server.connections == 1
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /base/access/v1/evaluation HTTP/1.1"
    assert {line.lower().decode() for line in head.split(b"\r\n")[1:]} >= {
        f"authorization: bearer {TOKEN}".lower(), "content-type: application/json", "accept-encoding: identity",
    }  # fmt: skip
    assert orjson.loads(body) == REQUEST


async def _awaited(client: Client) -> Any:
    return await client.asynchronous.evaluate(REQUEST)


def drips(peer: Peer) -> None:
    peer.request()
    peer.drip(YES * 100)


def drips_its_head(peer: Peer) -> None:
    peer.request()
    peer.drip(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000)


def says_nothing(peer: Peer) -> None:
    peer.request()
    peer.wait_until_closed()


@pytest.mark.parametrize("behave", [drips, drips_its_head, says_nothing, Peer.wait_until_closed])
def test_an_answer_that_is_late_as_a_whole_is_a_timeout(
    behave: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0)
    with HostileOpa(behave) as server:
        found = evaluated(server, timeout=0.3)

    assert found == (("EngineTimeoutError", "engine.timeout", "URL: no whole answer within 0.3 s"),) * 2


INVALID = "AnswerInvalidError", "engine.answer_invalid"
NOT_ONE = "and no answer of the service (check the address; no redirection is followed)"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http(b"{"), (*INVALID, f"URL: status 200, {NOT_ONE}")),
        (http(b"[]"), (*INVALID, f"URL: status 200, {NOT_ONE}")),
        (http(b'{"a":1,"a":2}'), (*INVALID, f"URL: status 200, {NOT_ONE}")),
        (http(b'"yes"'), (*INVALID, f"URL: status 200, {NOT_ONE}")),
        (http(b"\x1f\x8b\x08\0", headers=b"Content-Encoding: gzip\r\n"), (*INVALID, f"URL: status 200, {NOT_ONE}")),
        (http(b"<html>", status=b"404 Not Found"), (*INVALID, f"URL: status 404, {NOT_ONE}")),
        (
            http(b"", status=b"307 Temporary Redirect", headers=b"Location: https://elsewhere.example/\r\n"),
            (*INVALID, f"URL: status 307, {NOT_ONE}"),
        ),
        (http(b"x" * (MAX_ANSWER + 1)), (*INVALID, f"URL: an answer of more than {MAX_ANSWER} bytes")),
        (
            error(b"403 Forbidden", b"service.forbidden", b',"hint":"ask"'),
            ("ServiceError", "engine.unavailable", "service.forbidden: so it is (ask)"),
        ),
        (http(b'"no"', status=b"400 Bad Request"), ("ServiceError", "engine.unavailable", "http.400: no")),
        (
            http(b"<html>", status=b"500 Oh"),
            ("ServiceError", "engine.unavailable", "http.500: it gives no reason"),
        ),
        (b"HTTP/1.1 999 x\r\n\r\n", (*INVALID, f"URL: status 999, {NOT_ONE}")),
        (b"\0\0\0", ("EngineError", "engine.unavailable", "URL: ")),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_the_service_is_an_error_with_a_code(
    answer: bytes, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0)

    def behave(peer: Peer) -> None:
        if peer.request():
            peer.send(answer)

    with HostileOpa(behave) as server:
        for found in evaluated(server):
            assert found[:2] == expected[:2]
            assert found[2].startswith(expected[2])


def test_a_redirection_is_not_followed_and_the_token_goes_nowhere_else() -> None:
    with HostileOpa(answering(YES)) as other:
        away = http(b"", status=b"308 Permanent Redirect", headers=b"Location: %b/\r\n" % other.url.encode())
        with HostileOpa(answering(away)) as server:
            found = evaluated(server)

    assert [each[1] for each in found] == ["engine.answer_invalid"] * 2
    assert other.requests == []


def test_a_proxy_of_the_environment_never_sees_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileOpa(answering(YES)) as proxy, HostileOpa(answering(YES)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        found = evaluated(server)

    assert (found, proxy.requests) == (({"decision": True},) * 2, [])


def test_what_does_no_harm_twice_is_asked_again_and_nothing_else() -> None:
    steps: list[tuple[str, Callable[[Client], Any]]] = [
        ("POST /access/v1/evaluation HTTP/1.1", lambda client: client.evaluate(REQUEST)),
        ("POST /v1/proposals HTTP/1.1", lambda client: client.propose({"proposal": {}, "id": "i"})),
        ("POST /v1/proposals HTTP/1.1", lambda client: client.propose({"proposal": {}, "run": False})),
        ("POST /v1/proposals/i%2F1/result HTTP/1.1", lambda client: client.result("i/1", {})),
        ("GET /v1/manifest HTTP/1.1", lambda client: client.manifest()),
    ]
    once: list[tuple[str, Callable[[Client], Any]]] = [
        ("POST /v1/proposals HTTP/1.1", lambda client: client.propose({"proposal": {}})),
        ("POST /v1/approvals/a/grant HTTP/1.1", lambda client: client.approvals.grant("a")),
        ("POST /v1/approvals/a/deny HTTP/1.1", lambda client: client.approvals.deny("a")),
        ("POST /v1/approvals/a/withdraw HTTP/1.1", lambda client: client.approvals.withdraw("a")),
    ]
    for line, step in steps:
        with HostileOpa(answering(UNAVAILABLE, YES)) as server, Client(server.url, token=TOKEN) as client:
            assert step(client) == {"decision": True}
        assert asked(server) == [line] * 2
        assert len({request.partition(b"\r\n\r\n")[2] for request in server.requests}) == 1
    for line, step in once:
        with HostileOpa(answering(UNAVAILABLE, YES)) as server, Client(server.url, token=TOKEN) as client:
            with pytest.raises(ServiceError) as caught:
                step(client)
            assert (caught.value.status, caught.value.error_code) == (503, "service.unavailable")
        assert asked(server) == [line]


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    def behave(peer: Peer) -> None:
        while peer.request():
            if peer.number == 0:
                peer.send(YES[:-4])  # the service has decided, and its answer breaks off
                return
            if peer.number == 1:
                peer.reset()
                return
            peer.send(YES)

    with HostileOpa(behave) as server, Client(server.url, token=TOKEN) as client:
        assert client.propose({"proposal": {}, "id": "i"}) == {"decision": True}
    assert len(server.requests) == 3


def test_a_refusal_is_not_asked_again() -> None:
    with HostileOpa(answering(error(b"409 Conflict", b"service.conflict"), YES)) as server:
        found = evaluated(server)

    assert found == (("ServiceError", "engine.unavailable", "service.conflict: so it is"),) * 2
    assert len(server.requests) == 2


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0)
    certificate = self_signed(tmp_path)
    with HostileOpa(answering(YES), certificate=certificate) as server:
        found = evaluated(server)
        assert [each[:2] for each in found] == [("EngineError", "engine.unavailable")] * 2
        assert "CERTIFICATE_VERIFY_FAILED" in found[0][2]
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert evaluated(server) == ({"decision": True},) * 2


@pytest.mark.parametrize(
    "url",
    [
        "http://policy.example", "http://10.0.0.1:8181", "http://localhost.example", "ftp://127.0.0.1",
        "127.0.0.1:8181", "https://", "https://ann:SECRET@policy.example", "https://policy.example/?a=SECRET",
        "",
        "http://0.0.0.0:8181", "https://policy.example:99999999", "https://policy .example", "https://policy.example/#a",
    ],
)  # fmt: skip
def test_an_address_is_https_or_of_this_machine(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(url, token=TOKEN)

    assert str(caught.value) == (
        "not the address of a service (https://HOST[:PORT][/PATH]; http for this machine alone)"
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://policy.example/a"]
)
def test_addresses_that_are_admitted(url: str) -> None:
    Client(url, token=TOKEN).close()


def test_the_token_is_given_or_in_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_TOKEN", f"{TOKEN}-variable")
    with HostileOpa(answering(YES)) as server:
        for given in (f"{TOKEN}-given", None):
            with Client(server.url, token=given) as client:
                client.evaluate(REQUEST)

    sent = [request.partition(b"Bearer ")[2].partition(b"\r\n")[0].decode() for request in server.requests]
    assert sent == [f"{TOKEN}-given", f"{TOKEN}-variable"]


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "no token for the service"),
        ("", "no token for the service"),
        (f"{TOKEN}\r\nX-Other: 1", "the token has characters that none has"),
        (f"{TOKEN}ü", "the token has characters that none has"),
    ],
)
def test_a_token_that_cannot_be_sent(token: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDP_TOKEN", raising=False)

    with pytest.raises(UsageError) as caught:
        Client("https://policy.example", token=token)

    assert str(caught.value) == f"{message} (pass it, or set PDP_TOKEN)"


def test_the_token_is_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    with HostileOpa(answering(http(b"{"))) as server, Client(server.url, token=TOKEN) as client:
        for request in (REQUEST, {"a": object()}):
            with pytest.raises(PdpError) as caught:
                client.evaluate(request)
            texts += traceback.format_exception(caught.value)
        texts += map(repr, (client, vars(client), vars(client.connection), vars(client.asynchronous)))

    assert "SECRET" not in "".join([*texts, caplog.text])


def test_what_is_no_json_is_not_sent() -> None:
    with HostileOpa(answering(YES)) as server, Client(server.url, token=TOKEN) as client:
        for value in (object(), float, "\ud800", 2**70):
            with pytest.raises(PdpError) as caught:
                client.evaluate({"context": value})
            assert caught.value.code == "decision.request_invalid"

    assert server.requests == []


def test_a_client_that_is_closed_answers_at_once_and_what_was_under_way_ends() -> None:
    with HostileOpa(says_nothing) as server, ThreadPoolExecutor(1) as thread:
        client = Client(server.url, token=TOKEN)
        waiting = thread.submit(lambda: client.evaluate(REQUEST))
        while not server.requests:
            pass
        client.close()
        client.close()
        assert isinstance(waiting.exception(), BaseException)
        with pytest.raises(PdpError) as caught:
            client.evaluate(REQUEST)

    assert str(caught.value) == "the client is closed, or belongs to another process (make one in this process)"


def test_a_forked_process_is_told_so() -> None:
    with HostileOpa(answering(YES)) as server, Client(server.url, token=TOKEN) as client:
        child = os.fork()
        if child == 0:
            try:
                client.evaluate(REQUEST)
            except PdpError as error:
                os._exit(7 if "belongs to another process" in str(error) else 1)
            os._exit(0)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert client.evaluate(REQUEST) == {"decision": True}


def test_no_list_of_approvals_and_one_without_end() -> None:
    for page in (b'{"approvals":{}}', b"{}", b'{"approvals":[],"next":"a"}', b'{"approvals":[{"id":"a"}],"next":null}'):
        with HostileOpa(answering(http(page))) as server, Client(server.url, token=TOKEN) as client:
            with pytest.raises(PdpError) as caught:
                client.approvals.list(state="pending")
            assert caught.value.code == "engine.answer_invalid"
