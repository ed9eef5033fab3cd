"""The client returns valid answers, raises errors with codes, retries safe requests, and protects its token."""

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

TOKEN = "pdp_0123456789abcdefSECRET-secret_0"  # noqa: S105 - not a real token
REQUEST = {"subject": {"type": "user", "id": "a"}, "action": {"name": "b"}, "resource": {"type": "c", "id": "d"}}
YES = http(b'{"decision":true}')
UNAVAILABLE = http(
    b'{"error":{"code":"service.unavailable","message":"down"}}', status=b"503 No", headers=b"Retry-After: 1\r\n"
)


def error(status: bytes, code: bytes, hint: bytes = b"") -> bytes:
    return http(b'{"error":{"code":"%b","message":"so it is"%b}}' % (code, hint), status=status)


def request_lines(server: HostileOpa) -> list[str]:
    """Return the HTTP request line of each request that the server got."""
    return [request.partition(b"\r\n")[0].decode() for request in server.requests]


def evaluate_twice(server: HostileOpa, **options: Any) -> tuple[Any, Any]:
    """Evaluate a request synchronously and asynchronously. Return both answers, or class, code and text of errors."""

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
            answers: Any = client.evaluate(REQUEST)
        except PdpError as error:
            answers = of(error)
    return answers, asyncio.run(aevaluate())


def test_threads_and_tasks_send_their_requests_over_one_connection() -> None:
    with HostileOpa(answering(YES)) as server, Client(server.url + "/base/", token=TOKEN) as client:
        answers = [
            client.evaluate(REQUEST),
            asyncio.run(_awaited(client)),
            *at_once([lambda: client.evaluate(REQUEST)]),
        ]

    assert answers == [{"decision": True}] * 3
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
def test_client_times_out_if_the_answer_is_slow(
    behave: Callable[[Peer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0)
    with HostileOpa(behave) as server:
        answers = evaluate_twice(server, timeout=0.3)

    assert answers == (("EngineTimeoutError", "engine.timeout", "URL: no complete answer within 0.3 s"),) * 2


INVALID = "AnswerInvalidError", "engine.answer_invalid"
NO_ANSWER = "and not an answer of the decision service (check the address; redirects are not followed)"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http(b"{"), (*INVALID, f"URL: status 200, {NO_ANSWER}")),
        (http(b"[]"), (*INVALID, f"URL: status 200, {NO_ANSWER}")),
        (http(b'{"a":1,"a":2}'), (*INVALID, f"URL: status 200, {NO_ANSWER}")),
        (http(b'"yes"'), (*INVALID, f"URL: status 200, {NO_ANSWER}")),
        (http(b"\x1f\x8b\x08\0", headers=b"Content-Encoding: gzip\r\n"), (*INVALID, f"URL: status 200, {NO_ANSWER}")),
        (http(b"<html>", status=b"404 Not Found"), (*INVALID, f"URL: status 404, {NO_ANSWER}")),
        (
            http(b"", status=b"307 Temporary Redirect", headers=b"Location: https://elsewhere.example/\r\n"),
            (*INVALID, f"URL: status 307, {NO_ANSWER}"),
        ),
        (http(b"x" * (MAX_ANSWER + 1)), (*INVALID, f"URL: the answer has more than {MAX_ANSWER} bytes")),
        (
            error(b"403 Forbidden", b"service.forbidden", b',"hint":"ask"'),
            ("ServiceError", "engine.unavailable", "service.forbidden: so it is (ask)"),
        ),
        (http(b'"no"', status=b"400 Bad Request"), ("ServiceError", "engine.unavailable", "http.400: no")),
        (
            http(b"<html>", status=b"500 Oh"),
            ("ServiceError", "engine.unavailable", "http.500: the service gives no reason"),
        ),
        (b"HTTP/1.1 999 x\r\n\r\n", (*INVALID, f"URL: status 999, {NO_ANSWER}")),
        (b"\0\0\0", ("EngineError", "engine.unavailable", "URL: ")),
    ],
)  # fmt: skip
def test_client_raises_an_error_with_a_code_for_an_invalid_answer(
    answer: bytes, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0)

    def behave(peer: Peer) -> None:
        if peer.request():
            peer.send(answer)

    with HostileOpa(behave) as server:
        for answer_seen in evaluate_twice(server):
            assert answer_seen[:2] == expected[:2]
            assert answer_seen[2].startswith(expected[2])


def test_client_does_not_follow_a_redirect() -> None:
    with HostileOpa(answering(YES)) as other:
        away = http(b"", status=b"308 Permanent Redirect", headers=b"Location: %b/\r\n" % other.url.encode())
        with HostileOpa(answering(away)) as server:
            answers = evaluate_twice(server)

    assert [each[1] for each in answers] == ["engine.answer_invalid"] * 2
    assert other.requests == []


def test_client_ignores_proxies_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileOpa(answering(YES)) as proxy, HostileOpa(answering(YES)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        answers = evaluate_twice(server)

    assert (answers, proxy.requests) == (({"decision": True},) * 2, [])


def test_client_retries_only_idempotent_requests() -> None:
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
        assert request_lines(server) == [line] * 2
        assert len({request.partition(b"\r\n\r\n")[2] for request in server.requests}) == 1
    for line, step in once:
        with HostileOpa(answering(UNAVAILABLE, YES)) as server, Client(server.url, token=TOKEN) as client:
            with pytest.raises(ServiceError) as caught:
                step(client)
            assert (caught.value.status, caught.value.error_code) == (503, "service.unavailable")
        assert request_lines(server) == [line]


def test_request_is_retried_after_a_lost_answer() -> None:
    def behave(peer: Peer) -> None:
        while peer.request():
            if peer.number == 0:
                # The service has decided, but the service closes the connection before the answer is complete.
                peer.send(YES[:-4])
                return
            if peer.number == 1:
                peer.reset()
                return
            peer.send(YES)

    with HostileOpa(behave) as server, Client(server.url, token=TOKEN) as client:
        assert client.propose({"proposal": {}, "id": "i"}) == {"decision": True}
    assert len(server.requests) == 3


def test_rejected_request_is_not_retried() -> None:
    with HostileOpa(answering(error(b"409 Conflict", b"service.conflict"), YES)) as server:
        answers = evaluate_twice(server)

    assert answers == (("ServiceError", "engine.unavailable", "service.conflict: so it is"),) * 2
    assert len(server.requests) == 2


def test_invalid_tls_certificate_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0)
    certificate = self_signed(tmp_path)
    with HostileOpa(answering(YES), certificate=certificate) as server:
        answers = evaluate_twice(server)
        assert [each[:2] for each in answers] == [("EngineError", "engine.unavailable")] * 2
        assert "CERTIFICATE_VERIFY_FAILED" in answers[0][2]
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert evaluate_twice(server) == ({"decision": True},) * 2


@pytest.mark.parametrize(
    "url",
    [
        "http://policy.example", "http://10.0.0.1:8181", "http://localhost.example", "ftp://127.0.0.1",
        "127.0.0.1:8181", "https://", "https://ann:SECRET@policy.example", "https://policy.example/?a=SECRET",
        "",
        "http://0.0.0.0:8181", "https://policy.example:99999999", "https://policy .example", "https://policy.example/#a",
    ],
)  # fmt: skip
def test_client_rejects_an_insecure_service_address(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(url, token=TOKEN)

    assert str(caught.value) == (
        "not the address of a decision service "
        "(write https://HOST[:PORT][/PATH]; http is allowed for this machine only)"
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://policy.example/a"]
)
def test_client_accepts_a_secure_service_address(url: str) -> None:
    Client(url, token=TOKEN).close()


def test_client_takes_its_token_from_an_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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
        (f"{TOKEN}\r\nX-Other: 1", "the token has characters that are not allowed in a bearer token"),
        (f"{TOKEN}ü", "the token has characters that are not allowed in a bearer token"),
    ],
)
def test_missing_or_invalid_token_is_rejected(token: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDP_TOKEN", raising=False)

    with pytest.raises(UsageError) as caught:
        Client("https://policy.example", token=token)

    assert str(caught.value) == f"{message} (pass a token, or set PDP_TOKEN)"


def test_client_never_shows_its_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    with HostileOpa(answering(http(b"{"))) as server, Client(server.url, token=TOKEN) as client:
        for request in (REQUEST, {"a": object()}):
            with pytest.raises(PdpError) as caught:
                client.evaluate(request)
            texts += traceback.format_exception(caught.value)
        texts += map(repr, (client, vars(client), vars(client.connection), vars(client.asynchronous)))

    assert "SECRET" not in "".join([*texts, caplog.text])


def test_client_does_not_send_a_request_that_is_not_json() -> None:
    with HostileOpa(answering(YES)) as server, Client(server.url, token=TOKEN) as client:
        for value in (object(), float, "\ud800", 2**70):
            with pytest.raises(PdpError) as caught:
                client.evaluate({"context": value})
            assert caught.value.code == "decision.request_invalid"

    assert server.requests == []


def test_closing_the_client_cancels_running_requests() -> None:
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

    assert (
        str(caught.value)
        == "the client is closed, or belongs to another process (create a new `Client` in this process)"
    )


def test_forked_process_cannot_use_the_client() -> None:
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


def test_malformed_or_endless_list_of_approvals_is_an_error() -> None:
    for page in (b'{"approvals":{}}', b"{}", b'{"approvals":[],"next":"a"}', b'{"approvals":[{"id":"a"}],"next":null}'):
        with HostileOpa(answering(http(page))) as server, Client(server.url, token=TOKEN) as client:
            with pytest.raises(PdpError) as caught:
                client.approvals.list(state="pending")
            assert caught.value.code == "engine.answer_invalid"
