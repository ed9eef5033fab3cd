"""The sidecar engine with servers that misbehave. `tests/opa/test_local.py` tests it with a real OPA."""

import asyncio
import gc
import gzip
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pdp.decision import GRANT, Decision, Reason, Verdict
from pdp.engine.opa.client import Address, parse_address
from pdp.engine.opa.engine import SidecarEngine
from pdp.errors import UsageError
from pdp.json import MAX_BYTES
from tests.support import PATIENCE, until
from tests.support.hostile_opa import (
    ALLOW,
    GOOD,
    HostileOpa,
    Peer,
    answering,
    answering_once,
    http,
    result,
    self_signed,
)

IS_OPA = "(check that OPA listens at this URL)"
TOKEN = "(use letters, digits and -._~+/ with = at the end; check for spaces, line breaks and quotes)"  # noqa: S105
ADMITS = "(check the token, and that OPA's policy system.authz allows the request)"
POLICY = "(check that OPA listens at this URL, and the policy at the location that the message names)"


Decide = Callable[..., Decision]


@pytest.fixture(params=["sync", "async"])
def decide(request: pytest.FixtureRequest) -> Iterator[Decide]:
    """A function that gets a decision from an engine: with `decide_body`, or with `adecide_body` in one event loop."""
    if request.param == "sync":
        yield lambda engine, body=b"{}": engine.decide_body(body)
        return
    with asyncio.Runner() as runner:
        yield lambda engine, body=b"{}": runner.run(engine.adecide_body(body))


def outcome(decision: Decision) -> tuple[str, list[tuple[str, str]]]:
    return decision.verdict, [(reason.code, reason.message) for reason in decision.reasons]


ALLOWED = ("ALLOW", [(GRANT, "")])


def document(document: bytes) -> bytes:
    return ALLOW.replace(b"{}", document)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(result(ALLOW), id="plain"),
        pytest.param(result(ALLOW, GOOD + b',"decision_id":"1"'), id="of an OPA that logs decisions"),
        pytest.param(result(ALLOW + b"\n "),
            id="with white space"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b'Transfer-Encoding: chunked\r\n\r\n%x\r\n{%b\r\nA\r\n,"result":\r\n%x\r\n%b\r\n1\r\n}\r\n0\r\n\r\n'
            % (len(GOOD) + 1, GOOD, len(ALLOW), ALLOW),
            id="chunked",
        ),
    ],
)  # fmt: skip
def test_engine_returns_a_valid_answer_as_a_decision(decide: Decide, response: bytes) -> None:
    with HostileOpa(answering(response)) as opa, SidecarEngine(opa.url) as engine:
        assert outcome(decide(engine)) == ALLOWED


@pytest.mark.parametrize(
    ("response", "code", "message"),
    [
        pytest.param(http(b"{%b}" % GOOD), "answer_invalid", "has no document authz/decision", id="no result"),
        pytest.param(http(b"<html>Log in</html>"), "answer_invalid",
            f"answered something that is not JSON: '<html>Log in</html>' {IS_OPA}", id="HTML"),
        pytest.param(http(b""), "answer_invalid", f"answered something that is not JSON: nothing {IS_OPA}",
            id="nothing"),
        pytest.param(http(b'[{"result":{}}]'), "answer_invalid",
            f"answered something that is not in OPA's format: '[{{\"result\":{{}}}}]' {IS_OPA}", id="a list"),
        pytest.param(http(b'{"result":%b} x' % ALLOW), "answer_invalid",
            f"answered something that is not JSON: '{{\"result\":{ALLOW.decode()}}} x' {IS_OPA}",
            id="something behind the JSON"),
        pytest.param(http(b'{"result":NaN}'), "answer_invalid",
            f"answered something that is not JSON: '{{\"result\":NaN}}' {IS_OPA}", id="NaN"),
        pytest.param(http(b'{"result":1e999}'), "answer_invalid",
            f"answered something that is not JSON: '{{\"result\":1e999}}' {IS_OPA}", id="infinite"),
        pytest.param(http(b'{"result":"\\ud800"}'), "answer_invalid",
            f'answered something that is not JSON: \'{{"result":"\\\\ud800"}}\' {IS_OPA}', id="lone surrogate"),
        *(
            pytest.param(http(body), "answer_invalid",
                f"answered something that is not in OPA's format: {body.decode()!r} {IS_OPA}", id=body.decode()[:30])
            for body in (
                b'{"errors":[],"result":{}}', b'{"code":"x","result":{}}', b'{"warning":{},"result":{}}',
                b'{"metrics":{},"result":{}}', b'{"result":{},"result":{}}', b'{"result":{"verdict":1,"verdict":2}}',
                b'{"result":[{"a":{"b":1,"\\u0062":2}}]}',
            )
        ),
        pytest.param(http(b'{"code":"invalid_parameter","message":"bad\\n  input"}', status=b"400 Bad Request"),
            "answer_invalid", f"made no decision (400): bad input {POLICY}", id="400"),
        pytest.param(http(b'{"code":"unauthorized","message":"request rejected"}', status=b"401 Unauthorized"),
            "unavailable",
            f"refused the request (401): request rejected {ADMITS}", id="401"),
        pytest.param(http(b"", status=b"403 Forbidden"), "unavailable",
            f"refused the request (403): nothing {ADMITS}", id="403"),
        pytest.param(http(b"404 page not found\n", status=b"404 Not Found"), "answer_invalid",
            f"made no decision (404): '404 page not found' {POLICY}", id="404"),
        pytest.param(http(b"", status=b"302 Found", headers=b"Location: http://elsewhere/\r\n"), "answer_invalid",
            f"made no decision (302): nothing {POLICY}", id="a redirect, not followed"),
        pytest.param(http(result(ALLOW).partition(b"\r\n\r\n")[2], status=b"201 Created"), "answer_invalid",
            "made no decision (201): " + repr(result(ALLOW).decode().partition("\r\n\r\n")[2]) + f" {POLICY}",
            id="201, an ALLOW within"),
        pytest.param(
            http(b'{"errors":[{"message":"div: by zero","location":{"file":"a.rego","row":7}}]}', status=b"500 E"),
            "answer_invalid",
            f"made no decision (500): a.rego:7: div: by zero {POLICY}",
            id="500 of a policy",
        ),
        pytest.param(http(b'{"errors":[1],"message":2}', status=b"500 E"), "answer_invalid",
            'made no decision (500): \'{"errors":[1],"message":2}\' ' + POLICY, id="500 of another shape"),
        pytest.param(http(b"\x00\xff" + b"x" * 300, status=b"500 E"), "answer_invalid",
            f"made no decision (500): '??{'x' * 198}' {POLICY}".replace("??", "?\N{REPLACEMENT CHARACTER}"),
            id="500 with junk"),
        pytest.param(http(b"no upstream", status=b"503 Service Unavailable"), "unavailable",
            "is not ready (503): 'no upstream' (check its log)", id="503"),
    ],
)  # fmt: skip
def test_invalid_answer_is_denied_with_code_and_message(
    decide: Decide, response: bytes, code: str, message: str
) -> None:
    with HostileOpa(answering_once(response)) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine)

    hint = " (load the bundle into OPA, and check OPA's log)" if message.endswith("authz/decision") else ""
    shown = f"OPA at {opa.url} {message}{hint}"
    assert outcome(decision) == ("DENY", [(f"engine.{code}", shown.rpartition(" (")[0])])
    assert len(opa.requests) == 1


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + ALLOW, id="half an answer"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="half a head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + ALLOW, id="wrong length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", id="half a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{}", id="a chunk without a size"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}", id="a chunk below nothing"),
        pytest.param(http(gzip.compress(b"{}"), headers=b"Content-Encoding: gzip\r\n"),
            id="gzip, which nobody asked for"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + result(ALLOW), id="neither length nor chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + result(ALLOW), id="a length that is no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n{", id="a length that is too large"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n500000\r\n" + b" " * 0x500000,
            id="too much in chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n{}", id="endless headers"),
        pytest.param(b"220 smtp ready\r\n\r\n", id="not HTTP"),
    ],
)  # fmt: skip
def test_incomplete_http_answer_is_denied(decide: Decide, response: bytes) -> None:
    with HostileOpa(answering_once(response)) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine)

    assert (decision.verdict, decision.codes) == ("DENY", ("engine.answer_invalid",))
    assert decision.reasons[0].message.startswith(f"OPA at {opa.url} ")
    assert len(opa.requests) == 1


def test_request_to_opa_has_the_documented_path_headers_and_body(decide: Decide, tmp_path: Path) -> None:
    body = '{"a":"é","n":1.5}'.encode()
    with (
        HostileOpa(answering(result(ALLOW)), tmp_path / "opa.sock") as opa,
        SidecarEngine(opa.url, token="s3cret-._~+/=") as engine,  # noqa: S106 - not a real token
    ):
        decide(engine, body)

    head, _, content = opa.requests[0].partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    assert (line, content) == (
        "POST /v1/data/authz/decision?strict-builtin-errors=true&provenance=true HTTP/1.1",
        b'{"input":{"a":"\xc3\xa9","n":1.5}}',
    )
    assert {
        "Host: localhost",
        "Accept-Encoding: identity",
        "Authorization: Bearer s3cret-._~+/=",
        "Content-Type: application/json",
        "Content-Length: 28",
    } <= set(fields)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{}},"input":{"admin":true}',
            "the request is not JSON: unexpected content after document: line 1 column 3 (char 2)"),
        (b'"' + b"x" * MAX_BYTES + b'"', f"the request has {MAX_BYTES + 2} bytes, but at most {MAX_BYTES} are allowed"),
    ],
    ids=["closes the envelope itself", "too large"],
)  # fmt: skip
def test_invalid_request_is_not_sent_to_opa(decide: Decide, body: bytes, message: str) -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, body)

    assert (outcome(decision), opa.requests) == (("DENY", [("decision.request_invalid", message)]), [])


def test_large_request_and_answer_are_accepted(decide: Decide) -> None:
    body = b'"' + b"x" * (MAX_BYTES - 2) + b'"'
    with HostileOpa(answering(result(document(b'{"echo":%b}' % body)))) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, body)

    assert decision.reasons == (
        Reason(code="effects.gate_satisfied", message="", details={"echo": "x" * (MAX_BYTES - 2)}),
    )


# Versions of OPA

LOSES = 'which loses rules, including denies: its `input.x in {"a", input.y}` does not hold for input.y'
CRASHES = "which has an HTTP server that a request can crash (CVE-2026-97054)"
TAKE = "use OPA 1.22.4 or later"
UNKNOWN = f"{TAKE}, or set accept_unknown_opa"


def stated(version: str) -> bytes:
    return result(ALLOW, b'"provenance":{"version":"%b","build_commit":"c"}' % version.encode())


@pytest.mark.parametrize("version", ["1.22.4", "1.22.10", "1.23.0", "2.0.0", "1.22.4+vendor"])
def test_supported_opa_version_decides(decide: Decide, version: str) -> None:
    with HostileOpa(answering(stated(version))) as opa, SidecarEngine(opa.url) as engine:
        assert outcome(decide(engine)) == ALLOWED


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("0.70.0", "which is older than the versions that the policies are tested with"),
        ("1.20.2", "which is older than the versions that the policies are tested with"),
        ("1.21.0", LOSES), ("1.21.4", LOSES), ("1.22.0", LOSES), ("1.22.0+vendor", LOSES), ("1.22.1-dev", LOSES),
        ("1.22.1", CRASHES), ("1.22.3", CRASHES), ("1.22.4-rc.1", CRASHES),
    ],
)  # fmt: skip
@pytest.mark.parametrize("accepts_unknown", [False, True])
def test_faulty_opa_version_is_never_accepted(decide: Decide, version: str, fault: str, accepts_unknown: bool) -> None:
    with (
        HostileOpa(answering(stated(version))) as opa,
        SidecarEngine(opa.url, accept_unknown_opa=accepts_unknown) as engine,
    ):
        decision = decide(engine)

    message = f"OPA at {opa.url} is version {version}, {fault}: {TAKE}"
    assert outcome(decision) == ("DENY", [("engine.unavailable", message)])


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (http(b'{"result":%b}' % ALLOW), f"does not report its version: {UNKNOWN}"),
        (result(ALLOW, b'"provenance":{}'), f"does not report its version: {UNKNOWN}"),
        (result(ALLOW, b'"provenance":{"version":[]}'), f"does not report its version: {UNKNOWN}"),
        (result(ALLOW, b'"provenance":"1.22.4"'), f"does not report its version: {UNKNOWN}"),
        (stated("latest"), f"reports version 'latest', which is not a release: {UNKNOWN}"),
        (stated("1.23.0-dev"), f"reports version '1.23.0-dev', which is not a release: {UNKNOWN}"),
    ],
    ids=["no provenance", "no version", "a list", "a text", "no number", "a development build"],
)  # fmt: skip
def test_unknown_opa_version_is_rejected_unless_accepted_by_option(
    decide: Decide, response: bytes, message: str
) -> None:
    with (
        HostileOpa(answering(response)) as opa,
        SidecarEngine(opa.url) as engine,
        SidecarEngine(opa.url, accept_unknown_opa=True) as accepting,
    ):
        found = [outcome(decide(engine)), outcome(decide(accepting))]

    assert found == [("DENY", [("engine.unavailable", f"OPA at {opa.url} {message}")]), ALLOWED]


def test_opa_version_is_checked_in_every_answer(decide: Decide) -> None:
    answers = answering(*(stated(version) for version in ("1.22.4", "1.22.0", "1.22.4")))
    with HostileOpa(answers) as opa, SidecarEngine(opa.url) as engine:
        found = [decide(engine).verdict for _ in range(3)]

        assert (found, opa.connections) == (["ALLOW", "DENY", "ALLOW"], 1)


def test_faulty_opa_version_opens_circuit(decide: Decide) -> None:
    with HostileOpa(answering(stated("1.22.0"))) as opa, SidecarEngine(opa.url, failures=2, pause=3600) as engine:
        codes = {decide(engine).codes for _ in range(4)}

        assert (codes, len(opa.requests)) == ({("engine.unavailable",)}, 2)


def test_answer_with_the_id_of_another_request_is_invalid(decide: Decide) -> None:
    mixed_up = ALLOW[:-1] + b',"request_id":"one"}'
    with HostileOpa(answering(result(mixed_up))) as opa, SidecarEngine(opa.url) as engine:
        found = [decide(engine, b'{"context":{"request_id":"%b"}}' % name) for name in (b"one", b"two")]

    assert [(each.verdict, each.codes) for each in found] == [
        ("ALLOW", (GRANT,)), ("DENY", ("engine.answer_invalid",)),
    ]  # fmt: skip


# Connections


@pytest.mark.parametrize(
    ("behave", "connections"),
    [
        (answering(result(ALLOW)), 1),
        (answering_once(result(ALLOW)), 3),
        (answering(http(b'{%b,"result":%b}' % (GOOD, ALLOW), headers=b"Connection: close\r\n")), 3),
    ],
    ids=["kept", "given up by the server", "announced to be closed"],
)
def test_connection_is_reused_until_the_server_closes_it(
    decide: Decide, behave: Callable[[Peer], None], connections: int
) -> None:
    with HostileOpa(behave) as opa, SidecarEngine(opa.url) as engine:
        decisions = [outcome(decide(engine)) for _ in range(3)]

    assert (decisions, opa.connections, len(opa.requests)) == ([ALLOWED] * 3, connections, 3)


def test_one_engine_serves_threads_and_event_loops() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        found = [asyncio.run(engine.adecide_body(b"{}")), engine.decide_body(b"{}")]
        thread = threading.Thread(target=lambda: found.append(asyncio.run(engine.adecide_body(b"{}"))))
        thread.start()
        thread.join()
        found.append(engine.decide_body(b"{}"))

        # Each of the two event loops has a connection, and the two synchronous calls share a third connection.
        assert ([outcome(decision) for decision in found], opa.connections) == ([ALLOWED] * 4, 3)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_request_is_repeated_once_after_a_broken_connection(decide: Decide, reset: bool) -> None:
    def behave(peer: Peer) -> None:
        if peer.number == 0:
            peer.request()
            peer.send(result(ALLOW))
            peer.request()
            if reset:
                peer.reset()
        else:
            answering(result(ALLOW))(peer)

    with HostileOpa(behave) as opa, SidecarEngine(opa.url) as engine:
        found = [outcome(decide(engine)) for _ in range(2)]

    assert (found, opa.connections, len(opa.requests)) == ([ALLOWED] * 2, 2, 3)


def test_request_is_not_repeated_after_a_second_broken_connection(decide: Decide) -> None:
    def behave(peer: Peer) -> None:
        peer.request()

    with HostileOpa(behave) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine)

    message = f"OPA at {opa.url} cannot be reached: the connection was closed without an answer"
    assert (outcome(decision), opa.connections) == (("DENY", [("engine.unavailable", message)]), 2)


def test_http_answer_that_arrives_without_a_request_is_ignored(decide: Decide, tmp_path: Path) -> None:
    asked_twice = threading.Event()
    sent = threading.Event()

    def behave(peer: Peer) -> None:
        peer.request()
        peer.send(result(document(b'{"of":"%d"}' % peer.number)))
        if peer.number == 0:
            asked_twice.wait(PATIENCE)
            peer.send(result(document(b'{"of":"nobody"}')))
            sent.set()
        peer.wait_until_closed()

    with HostileOpa(behave, tmp_path / "opa.sock") as opa, SidecarEngine(opa.url) as engine:
        first = decide(engine)
        asked_twice.set()
        sent.wait(PATIENCE)
        second = decide(engine)

    assert [one.reasons[0].details for one in (first, second)] == [{"of": "0"}, {"of": "1"}]


async def test_http_answer_without_a_request_is_ignored_if_the_event_loop_reads_the_answer(tmp_path: Path) -> None:
    def behave(peer: Peer) -> None:
        while peer.request():
            peer.send(result(document(b'{"of":"%d"}' % peer.number)))
            peer.send(result(document(b'{"of":"nobody"}')))

    with HostileOpa(behave, tmp_path / "opa.sock") as opa, SidecarEngine(opa.url) as engine:
        found = []
        for _ in range(3):
            found.append((await engine.adecide_body(b"{}")).reasons[0].details.get("of"))
            await asyncio.sleep(0.02)

    assert "nobody" not in found


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("TCP", "Connection refused"),
        ("unix://{}/opa.sock", "Connection refused"),
        ("unix://{}/missing.sock", "No such file or directory"),
        ("http://opa.invalid:8181", ""),
    ],
)
def test_engine_is_unavailable_if_nothing_listens_at_the_url(
    decide: Decide, place: str, reason: str, tmp_path: Path
) -> None:
    with HostileOpa(answering(result(ALLOW)), None if place == "TCP" else tmp_path / "opa.sock") as opa:
        url = opa.url if place == "TCP" else place.format(tmp_path)
    with SidecarEngine(url) as engine:
        decision = decide(engine)

    assert decision.codes == ("engine.unavailable",)
    assert decision.reasons[0].message.startswith(f"OPA at {url} cannot be reached: {reason}")


def test_engine_is_unavailable_if_the_host_accepts_no_connection(decide: Decide, tmp_path: Path) -> None:
    path = str(tmp_path / "opa.sock")
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
        full.bind(path)
        full.listen(0)
        waiting.connect(path)  # This connection fills the queue of the listener.
        with SidecarEngine(f"unix://{path}", connect_timeout=0.05, timeout=0.2) as engine:
            decision = decide(engine)

    # In asyncio, a connection attempt to a Unix socket with a full queue does not fail but waits until the time-out.
    assert decision.verdict is Verdict.DENY
    assert decision.codes in {("engine.unavailable",), ("engine.timeout",)}


# Time-outs


def hang(peer: Peer) -> None:
    peer.request()
    peer.wait_until_closed()


def hang_midway(peer: Peer) -> None:
    peer.request()
    peer.send(result(ALLOW)[:-5])
    peer.wait_until_closed()


def drip(peer: Peer) -> None:
    peer.request()
    peer.drip(result(ALLOW))


@pytest.mark.parametrize("behave", [hang, hang_midway, drip])
def test_slow_answer_is_a_timeout(decide: Decide, behave: Callable[[Peer], None]) -> None:
    with HostileOpa(behave) as opa, SidecarEngine(opa.url, timeout=0.1) as engine:
        decision = decide(engine)

        assert outcome(decision) == ("DENY", [("engine.timeout", f"OPA at {opa.url} did not answer within 0.1 s")])
        # The engine does not retry after a time-out. The server may accept the first connection only now.
        assert until(lambda: opa.connections)
        assert opa.connections == 1


def test_request_that_the_server_does_not_read_is_a_timeout(decide: Decide, tmp_path: Path) -> None:
    path = str(tmp_path / "opa.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(8)
        with SidecarEngine(f"unix://{path}", timeout=0.1) as engine:
            decision = decide(engine, b'"' + b"x" * 1_000_000 + b'"')

    assert decision.codes == ("engine.timeout",)


async def test_connection_of_a_cancelled_decision_is_not_reused() -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def behave(peer: Peer) -> None:
        peer.request()
        if peer.number == 0:
            loop.call_soon_threadsafe(asked.set)
            peer.wait_until_closed()
        peer.send(result(document(b'{"of":"%d"}' % peer.number)))
        peer.wait_until_closed()

    with HostileOpa(behave) as opa, SidecarEngine(opa.url) as engine:
        task = asyncio.create_task(engine.adecide_body(b"{}"))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        decision = await engine.adecide_body(b"{}")

    assert decision.reasons[0].details == {"of": "1"}


# Limits of connections


async def test_asynchronous_tasks_share_a_limited_number_of_connections() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url, connections=4) as engine:
        decisions = await asyncio.gather(*(engine.adecide_body(b"{}") for _ in range(200)))

        assert ([outcome(decision) for decision in decisions], opa.connections) == ([ALLOWED] * 200, 4)


def test_idle_connections_of_threads_are_limited() -> None:
    all_ask = threading.Barrier(4)

    def behave(peer: Peer) -> None:
        while peer.request():
            all_ask.wait(PATIENCE)
            peer.send(result(ALLOW))

    with HostileOpa(behave) as opa, SidecarEngine(opa.url, connections=2) as engine:
        # The engine keeps two of the first four connections open, so the second round opens only two connections.
        for connections in (4, 6):
            with ThreadPoolExecutor(4) as threads:
                decisions = list(threads.map(engine.decide_body, [b"{}"] * 4))
            assert ([outcome(decision) for decision in decisions], opa.connections) == ([ALLOWED] * 4, connections)


# The circuit breaker


def test_consecutive_failures_open_circuit(decide: Decide) -> None:
    def behave(peer: Peer) -> None:
        peer.request()
        peer.send(http(b"", status=b"503 X"))

    with HostileOpa(behave) as opa, SidecarEngine(opa.url, failures=3, pause=3600) as engine:
        found = [outcome(decide(engine)) for _ in range(5)]

    not_ready = f"OPA at {opa.url} is not ready (503): nothing"
    assert (
        found
        == [("DENY", [("engine.unavailable", not_ready)])] * 3
        + [("DENY", [("engine.unavailable", f"{not_ready}; the engine does not ask OPA again until the pause ends")])]
        * 2
    )
    assert len(opa.requests) == 3


def test_circuit_asks_opa_again_after_the_pause(decide: Decide, tmp_path: Path) -> None:
    path = tmp_path / "opa.sock"
    with SidecarEngine(f"unix://{path}", failures=1, pause=0.001) as engine:
        assert decide(engine).codes == ("engine.unavailable",)
        with HostileOpa(answering(result(ALLOW)), path):
            while (found := outcome(decide(engine))) != ALLOWED:
                assert found[1][0][0] == "engine.unavailable"

            assert outcome(decide(engine)) == ALLOWED


@pytest.mark.parametrize(
    "response", [http(b"{%b}" % GOOD), http(b"", status=b"500 X"), http(b"", status=b"401 X"), b"junk\r\n\r\n"]
)
def test_invalid_answers_do_not_open_circuit(decide: Decide, response: bytes) -> None:
    with HostileOpa(answering_once(response)) as opa, SidecarEngine(opa.url, failures=2, pause=3600) as engine:
        for _ in range(5):
            decide(engine)

    assert len(opa.requests) == 5


# Closing an engine, forks, and invalid arguments


def test_closed_engine_denies(decide: Decide) -> None:
    with HostileOpa(answering(result(ALLOW))) as opa:
        with SidecarEngine(opa.url) as engine:
            decide(engine)
        decision = decide(engine)

        message = f"OPA at {opa.url} was not asked: the engine is closed"
        assert outcome(decision) == ("DENY", [("engine.unavailable", message)])
        assert len(opa.requests) == 1


async def test_async_decision_without_aiohttp_is_denied_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pdp.engine.opa.aio", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with SidecarEngine("http://localhost:1") as engine:
        decision = await engine.adecide_body(b"{}")

    message = "this needs the extra \"sidecar\": pip install 'tool-pdp[sidecar]'"
    assert outcome(decision) == ("DENY", [("engine.unavailable", message)])


FORKING = """
import os, sys
from pdp.engine.opa.client import Address, parse_address
from pdp.engine.opa.engine import SidecarEngine
with SidecarEngine(sys.argv[1], timeout=600, connect_timeout=600) as engine:
    first = engine.decide_body(b"{}").verdict
    child = os.fork()
    decision = engine.decide_body(b"{}")
    if child == 0:
        print(decision.verdict, decision.reasons[0].code, decision.reasons[0].message, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(first, decision.verdict)
"""


@pytest.mark.process
def test_forked_child_denies() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa:
        done = subprocess.run([sys.executable, "-c", FORKING, opa.url], capture_output=True, text=True, check=False)

        message = f"OPA at {opa.url} was not asked: the engine was opened before the process was forked"
        assert done.stdout.splitlines() == [f"DENY engine.unavailable {message}", "ALLOW ALLOW"]
        assert (done.returncode, done.stderr, opa.connections, len(opa.requests)) == (0, "", 1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": 0.0}, "timeout: 0.0 is not a number of seconds (give a number above 0, at most 3600)"),
        ({"timeout": float("nan")}, "timeout: nan is not a number of seconds (give a number above 0, at most 3600)"),
        ({"connect_timeout": float("inf")},
         "connect_timeout: inf is not a number of seconds (give a number above 0, at most 3600)"),
        ({"pause": -1.0}, "pause: -1.0 is not a number of seconds (give a number above 0, at most 3600)"),
        ({"connections": 0}, "connections: 0 is out of range (give at least 1)"),
        ({"failures": 0}, "failures: 0 is out of range (give at least 1)"),
        ({"token": "a\r\nX: y"}, f"OPA's token has characters that a bearer token must not have {TOKEN}"),
        ({"token": ""}, f"OPA's token has characters that a bearer token must not have {TOKEN}"),
        ({"tls": ssl.create_default_context()}, "tls is set, but OPA's URL is not https (use https://HOST:PORT)"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SidecarEngine("http://localhost", **arguments)  # type: ignore[arg-type]

    assert str(caught.value) == message


# TLS


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a private key and a self-signed certificate for 127.0.0.1."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


def test_tls_with_trusted_certificate_works(decide: Decide, certificate: Path) -> None:
    much = result(document(b'{"a":"%b"}' % (b"x" * 300_000)))
    with (
        HostileOpa(answering(result(ALLOW), much), certificate=certificate) as opa,
        SidecarEngine(opa.url, tls=trusting(certificate)) as engine,
    ):
        found = [decide(engine) for _ in range(3)]

        assert [decision.verdict for decision in found] == [Verdict.ALLOW] * 3
        assert found[2].reasons[0].details == {"a": "x" * 300_000}
        assert (opa.connections, len(opa.requests)) == (1, 3)


def test_client_certificate_is_sent(decide: Decide, certificate: Path) -> None:
    context = trusting(certificate)
    context.load_cert_chain(certificate)
    with (
        HostileOpa(answering(result(ALLOW)), certificate=certificate, clients=certificate) as opa,
        SidecarEngine(opa.url, tls=context) as ours,
        SidecarEngine(opa.url, tls=trusting(certificate)) as without,
    ):
        found = [decide(engine) for engine in (ours, without)]

    assert [decision.verdict for decision in found] == [Verdict.ALLOW, Verdict.DENY]
    assert found[1].codes == ("engine.unavailable",)


def refuse_tls(peer: Peer) -> None:
    peer.send(http(b"", status=b"400 Bad Request"))
    peer.wait_until_closed()


@pytest.mark.parametrize(
    ("behave", "served", "trusted", "code", "message"),
    [
        (answering(result(ALLOW)), True, False, "unavailable",
            "cannot be reached: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"),
        (answering_once(result(ALLOW)[:-5]), True, True, "answer_invalid", "sent an incomplete answer"),
        (refuse_tls, False, False, "unavailable", "cannot be reached: "),
        (Peer.wait_until_closed, False, False, "unavailable", "cannot be reached: no connection in time"),
    ],
    ids=["not trusted", "breaks off", "no TLS spoken", "endless handshake"],
)  # fmt: skip
def test_tls_failure_is_reported(
    decide: Decide, certificate: Path, behave: Callable[[Peer], None], served: bool, trusted: bool, code: str,
    message: str,
) -> None:  # fmt: skip
    with HostileOpa(behave, certificate=certificate if served else None) as opa:
        url = opa.url if served else opa.url.replace("http", "https")
        patience = 0.05 if behave is Peer.wait_until_closed else PATIENCE
        with SidecarEngine(url, tls=trusting(certificate) if trusted else None, connect_timeout=patience) as engine:
            decision = decide(engine)
        # The error and the engine refer to each other. If a connection is still open, garbage collection warns about
        # it.
        del engine
        gc.collect()

    assert (decision.verdict, decision.codes) == ("DENY", (f"engine.{code}",))
    assert decision.reasons[0].message.startswith(f"OPA at {url} {message}")


def test_proxy_variables_are_ignored(decide: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://nowhere.invalid")
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        assert outcome(decide(engine)) == ALLOWED


# Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:8181", (None, "localhost", 8181, False)),
        ("http://opa-1.internal/", (None, "opa-1.internal", 80, False)),
        ("https://10.0.0.1", (None, "10.0.0.1", 443, True)),
        ("https://opa:80", (None, "opa", 80, True)),
        ("http://[::1]:8181", (None, "::1", 8181, False)),
        ("unix:///run/opa.sock", ("/run/opa.sock", "localhost", 0, False)),
    ],
)
def test_valid_urls_are_parsed(url: str, address: tuple[str | None, str, int, bool]) -> None:
    assert parse_address(url) == Address(url.rstrip("/"), *address)


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8181", "ftp://opa", "http://", "http://opa:0", "http://a b", "http://opa:99999", "http://[::1",
        "http://opa/v1/data", "http://opa?a=b", "http://opa#", "http://opa\r\nX: y", "unix://run/opa.sock", "unix:///run/",
        "unix:///run\n/x", "unix:///" + "x" * 103,
    ],
)  # fmt: skip
def test_invalid_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert str(caught.value) == (
        f"OPA's URL {url[:100]!r} is not valid "
        "(give http://HOST:PORT, https://HOST:PORT or unix:///PATH of at most 103 bytes)"
    )


@pytest.mark.parametrize("url", ["http://me:secret@opa", "http://me:secret@opa?a=b"])
def test_password_in_url_is_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert str(caught.value) == "OPA's URL contains a user or a password (use a token instead)"
