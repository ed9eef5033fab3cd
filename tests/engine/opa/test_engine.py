"""The sidecar engine against servers that do everything wrong. Against a real OPA: test_local_opa.py."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pdp.decision import Decision, Reason, Verdict
from pdp.engine.opa.engine import SidecarEngine
from pdp.errors import UsageError
from pdp.json import MAX_BYTES
from pdp.request import Action, Entity, Request
from tests.support.hostile_opa import ALLOW, HostileOpa, answering, answering_once, http, result

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.hostile_opa import Peer

Way = Literal["sync", "async"]

IS_OPA = "(check that OPA itself listens there)"
LOG = "(check that OPA itself listens there, and look into its log)"
RUNS = "(check that it runs and that the address is right)"
POLICY = "(check the policy at the place that is named, if any, and that OPA itself listens there)"


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> Way:
    return "sync" if request.param == "sync" else "async"


def decide(engine: SidecarEngine, way: Way, body: bytes = b"{}") -> Decision:
    return engine.decide_body(body) if way == "sync" else asyncio.run(engine.adecide_body(body))


def outcome(decision: Decision) -> tuple[str, list[tuple[str, str]]]:
    return decision.verdict, [(reason.code, reason.message) for reason in decision.reasons]


ALLOWED = ("ALLOW", [("x.y", "")])


def document(document: bytes) -> bytes:
    return ALLOW.replace(b"{}", document)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(result(ALLOW), id="plain"),
        pytest.param(
            http(b'{"decision_id":"1","warning":{"code":"a"},"metrics":{},"result":%b}' % ALLOW),
            id="other fields beside",
        ),
        pytest.param(
            b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n{"result":\r\n%x\r\n%b\r\n1\r\n}\r\n0\r\n\r\n'
            % (len(ALLOW), ALLOW),
            id="chunked",
        ),
    ],
)
def test_a_decision_is_a_decision(way: Way, response: bytes) -> None:
    with HostileOpa(answering(response)) as opa, SidecarEngine(opa.url) as engine:
        assert outcome(decide(engine, way)) == ALLOWED


@pytest.mark.parametrize(
    ("response", "code", "message"),
    [
        pytest.param(http(b"{}"), "answer_invalid", "has no document authz/decision", id="no result"),
        pytest.param(
            http(b"<html>Log in</html>"),
            "answer_invalid",
            f"answered something that is not JSON: '<html>Log in</html>' {IS_OPA}",
            id="HTML",
        ),
        pytest.param(
            http(b""), "answer_invalid", f"answered something that is not JSON: nothing {IS_OPA}", id="nothing"
        ),
        pytest.param(
            http(b'[{"result":{}}]'),
            "answer_invalid",
            f"answered something that is no answer of OPA's: '[{{\"result\":{{}}}}]' {IS_OPA}",
            id="a list",
        ),
        pytest.param(
            http(b'{"result":%b} x' % ALLOW),
            "answer_invalid",
            f"answered something that is not JSON: '{{\"result\":{ALLOW.decode()}}} x' {IS_OPA}",
            id="something behind the JSON",
        ),
        pytest.param(
            http(b'{"result":NaN}'),
            "answer_invalid",
            f"answered something that is not JSON: '{{\"result\":NaN}}' {IS_OPA}",
            id="NaN",
        ),
        pytest.param(
            http(b'{"result":1e999}'),
            "answer_invalid",
            f"answered something that is not JSON: '{{\"result\":1e999}}' {IS_OPA}",
            id="infinite",
        ),
        pytest.param(
            http(b'{"result":"\\ud800"}'),
            "answer_invalid",
            f'answered something that is not JSON: \'{{"result":"\\\\ud800"}}\' {IS_OPA}',
            id="lone surrogate",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + ALLOW,
            "answer_invalid",
            f"broke off in the middle of its answer {LOG}",
            id="half an answer",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Le",
            "answer_invalid",
            f"broke off in the middle of its answer {LOG}",
            id="half a head",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + ALLOW,
            "answer_invalid",
            f"sent more than it announced {LOG}",
            id="wrong length",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
            "answer_invalid",
            f"broke off in the middle of its answer {LOG}",
            id="half a chunk",
        ),
        pytest.param(
            http(gzip.compress(b'{"result":%b}' % ALLOW), headers=b"Content-Encoding: gzip\r\n"),
            "answer_invalid",
            f"compressed its answer, although nobody asked for it {LOG}",
            id="gzip",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n\r\n" + ALLOW,
            "answer_invalid",
            f"does not say where its answer ends {LOG}",
            id="neither length nor chunks",
        ),
        pytest.param(b"220 smtp ready\r\n\r\n", "answer_invalid", f"did not answer in HTTP/1.1 {LOG}", id="not HTTP"),
        pytest.param(
            http(b'{"code":"invalid_parameter","message":"bad\\n  input"}', status=b"400 Bad Request"),
            "answer_invalid",
            f"made no decision (400): bad input {POLICY}",
            id="400",
        ),
        pytest.param(
            http(b'{"code":"unauthorized","message":"request rejected"}', status=b"401 Unauthorized"),
            "unavailable",
            "refused the request (401): request rejected (check the token, and OPA's policy system.authz)",
            id="401",
        ),
        pytest.param(
            http(b"", status=b"403 Forbidden"),
            "unavailable",
            "refused the request (403): nothing (check the token, and OPA's policy system.authz)",
            id="403",
        ),
        pytest.param(
            http(b"404 page not found\n", status=b"404 Not Found"),
            "answer_invalid",
            f"made no decision (404): '404 page not found' {POLICY}",
            id="404",
        ),
        pytest.param(
            http(b"", status=b"302 Found", headers=b"Location: http://elsewhere/\r\n"),
            "answer_invalid",
            f"made no decision (302): nothing {POLICY}",
            id="a redirect, not followed",
        ),
        pytest.param(
            http(result(ALLOW).partition(b"\r\n\r\n")[2], status=b"201 Created"),
            "answer_invalid",
            "made no decision (201): " + repr('{"result":' + ALLOW.decode() + "}") + f" {POLICY}",
            id="201, an ALLOW within",
        ),
        pytest.param(
            http(b'{"errors":[{"message":"div: by zero","location":{"file":"a.rego","row":7}}]}', status=b"500 E"),
            "answer_invalid",
            f"made no decision (500): a.rego:7: div: by zero {POLICY}",
            id="500 of a policy",
        ),
        pytest.param(
            http(b'{"errors":[1],"message":2}', status=b"500 E"),
            "answer_invalid",
            'made no decision (500): \'{"errors":[1],"message":2}\' ' + POLICY,
            id="500 of another shape",
        ),
        pytest.param(
            http(b"\x00\xff" + b"x" * 300, status=b"500 E"),
            "answer_invalid",
            f"made no decision (500): '??{'x' * 198}' {POLICY}".replace("??", "?\N{REPLACEMENT CHARACTER}"),
            id="500 with junk",
        ),
        pytest.param(
            http(b"no upstream", status=b"503 Service Unavailable"),
            "unavailable",
            "is not ready (503): 'no upstream' (look into its log)",
            id="503",
        ),
    ],
)
def test_anything_else_is_a_deny_with_a_code_that_says_what_and_where(
    way: Way, response: bytes, code: str, message: str
) -> None:
    with HostileOpa(answering_once(response)) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, way)

    hint = " (load the bundle into it, and look into its log)" if message.endswith("authz/decision") else ""
    shown = f"OPA at {opa.url} {message}{hint}"
    assert outcome(decision) == ("DENY", [(f"engine.{code}", shown.rpartition(" (")[0])])
    assert len(opa.requests) == 1


@pytest.mark.parametrize(
    "shape", [b"null", b"true", b"[]", b"{}", b'"ALLOW"', document(b"[]"), ALLOW[:-1] + b',"a":1}']
)
def test_a_result_of_another_shape_is_a_deny(way: Way, shape: bytes) -> None:
    with HostileOpa(answering(result(shape))) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, way)

    assert (decision.verdict, decision.codes) == (Verdict.DENY, ("engine.answer_invalid",))


def test_the_request_is_what_opa_documents(way: Way, tmp_path: Path) -> None:
    body = '{"a":"é","n":1.5}'.encode()
    with (
        HostileOpa(answering(result(ALLOW)), tmp_path / "opa.sock") as opa,
        SidecarEngine(opa.url, token="s3cret-._~+/=") as engine,  # noqa: S106 - a token made up
    ):
        decide(engine, way, body)

    assert opa.requests == [
        (
            b"POST /v1/data/authz/decision?strict-builtin-errors=true HTTP/1.1\r\nHost: localhost\r\n"
            b"Accept-Encoding: identity\r\nAuthorization: Bearer s3cret-._~+/=\r\nContent-Type: application/json\r\n"
            b'Content-Length: 28\r\n\r\n{"input":{"a":"\xc3\xa9","n":1.5}}'
        )
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{}},"input":{"admin":true}',
            "the request is not JSON: unexpected content after document: line 1 column 3 (char 2)",
        ),
        (
            b'"' + b"x" * MAX_BYTES + b'"',
            f"the request has {MAX_BYTES + 2} bytes, at most {MAX_BYTES} are admitted",
        ),
    ],
    ids=["closes the envelope itself", "too large"],
)
def test_what_is_no_request_is_not_sent(way: Way, body: bytes, message: str) -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, way, body)

    assert (outcome(decision), opa.requests) == (("DENY", [("decision.request_invalid", message)]), [])


def test_a_large_request_and_answer_pass(way: Way) -> None:
    body = b'"' + b"x" * (MAX_BYTES - 2) + b'"'
    with HostileOpa(answering(result(document(b'{"echo":%b}' % body)))) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, way, body)

    assert decision.reasons == (Reason(code="x.y", message="", details={"echo": "x" * (MAX_BYTES - 2)}),)


# --- connections


def test_a_connection_is_kept(way: Way) -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        for _ in range(3):
            assert outcome(decide(engine, way)) == ALLOWED

        assert (opa.connections, len(opa.requests)) == (1, 3)


def test_one_engine_serves_threads_and_loops_in_turn() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        found = [decide(engine, way) for way in ("async", "sync", "async")]
        thread = threading.Thread(target=lambda: found.append(decide(engine, "async")))
        thread.start()
        thread.join()

        assert ([outcome(one) for one in found], opa.connections) == ([ALLOWED] * 4, 1)


def test_a_connection_that_the_server_gives_up_is_replaced(way: Way) -> None:
    with HostileOpa(answering_once(result(ALLOW))) as opa, SidecarEngine(opa.url) as engine:
        found = [outcome(decide(engine, way)) for _ in range(3)]

    assert (found, opa.connections) == ([ALLOWED] * 3, 3)


def test_a_server_that_says_close_is_believed(way: Way) -> None:
    last = http(b'{"result":%b}' % ALLOW, headers=b"Connection: close\r\n")
    with HostileOpa(answering(last)) as opa, SidecarEngine(opa.url) as engine:
        found = [outcome(decide(engine, way)) for _ in range(2)]

    assert (found, opa.connections) == ([ALLOWED] * 2, 2)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_connection_that_fails_while_it_is_asked_is_tried_once_more(way: Way, reset: bool) -> None:
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
        found = [outcome(decide(engine, way)) for _ in range(2)]

    assert (found, opa.connections, len(opa.requests)) == ([ALLOWED] * 2, 2, 3)


def test_it_is_tried_once_more_and_no_further(way: Way) -> None:
    def behave(peer: Peer) -> None:
        peer.request()

    with HostileOpa(behave) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, way)

    message = f"OPA at {opa.url} cannot be reached: the connection was closed without an answer"
    assert (outcome(decision), opa.connections) == (("DENY", [("engine.unavailable", message)]), 2)


def test_an_answer_that_nobody_asked_for_answers_nothing(way: Way, tmp_path: Path) -> None:
    asked_twice = threading.Event()
    sent = threading.Event()

    def behave(peer: Peer) -> None:
        peer.request()
        peer.send(result(document(b'{"of":"%d"}' % peer.number)))
        if peer.number == 0:
            asked_twice.wait(5)
            peer.send(result(document(b'{"of":"nobody"}')))
            sent.set()
        peer.wait_until_closed()

    with HostileOpa(behave, tmp_path / "opa.sock") as opa, SidecarEngine(opa.url) as engine:
        first = decide(engine, way)
        asked_twice.set()
        sent.wait(5)
        second = decide(engine, way)

    assert [one.reasons[0].details for one in (first, second)] == [{"of": "0"}, {"of": "1"}]


@pytest.mark.parametrize("unix", [False, True], ids=["TCP", "Unix socket"])
def test_where_nobody_listens_engines_are_unavailable(way: Way, unix: bool, tmp_path: Path) -> None:
    with HostileOpa(answering(result(ALLOW)), tmp_path / "opa.sock" if unix else None) as opa:
        url = opa.url
    with SidecarEngine(url) as engine:
        decision = decide(engine, way)

    message = f"OPA at {url} cannot be reached: Connection refused"
    assert outcome(decision) == ("DENY", [("engine.unavailable", message)])


def test_a_socket_that_is_missing_is_named(way: Way, tmp_path: Path) -> None:
    with SidecarEngine(f"unix://{tmp_path}/opa.sock") as engine:
        decision = decide(engine, way)

    message = f"OPA at unix://{tmp_path}/opa.sock cannot be reached: No such file or directory"
    assert outcome(decision) == ("DENY", [("engine.unavailable", message)])


def test_a_host_that_is_not_known_is_unavailable(way: Way) -> None:
    with SidecarEngine("http://opa.invalid:8181", timeout=20, connect_timeout=20) as engine:
        decision = decide(engine, way)

    assert (decision.codes, "OPA at http://opa.invalid:8181 cannot be reached: " in decision.reasons[0].message) == (
        ("engine.unavailable",),
        True,
    )


def test_a_host_that_takes_no_connection_is_unavailable(way: Way, tmp_path: Path) -> None:
    path = str(tmp_path / "opa.sock")
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
        full.bind(path)
        full.listen(0)
        waiting.connect(path)  # and now its queue is full
        with SidecarEngine(f"unix://{path}", connect_timeout=0.05) as engine:
            decision = decide(engine, way)

    assert (decision.verdict, decision.codes) == (Verdict.DENY, ("engine.unavailable",))


# --- time


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
def test_an_answer_that_takes_too_long_is_a_timeout(way: Way, behave: Callable[[Peer], None]) -> None:
    with HostileOpa(behave) as opa, SidecarEngine(opa.url, timeout=0.1) as engine:
        decision = decide(engine, way)

        assert outcome(decision) == ("DENY", [("engine.timeout", f"OPA at {opa.url} did not answer within 0.1 s")])
        assert opa.connections == 1  # not tried again: the time is over


def test_a_request_that_is_not_read_is_a_timeout(way: Way, tmp_path: Path) -> None:
    path = str(tmp_path / "opa.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(8)
        with SidecarEngine(f"unix://{path}", timeout=0.1) as engine:
            decision = decide(engine, way, b'"' + b"x" * 1_000_000 + b'"')

    assert decision.codes == ("engine.timeout",)


async def test_a_cancelled_decision_leaves_nothing_behind() -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def behave(peer: Peer) -> None:
        peer.request()
        if peer.number == 0:
            loop.call_soon_threadsafe(asked.set)
            peer.wait_until_closed()
        peer.send(result(document(b'{"of":"%d"}' % peer.number)))
        peer.wait_until_closed()

    with HostileOpa(behave) as opa, SidecarEngine(opa.url, timeout=30) as engine:
        task = asyncio.create_task(engine.adecide_body(b"{}"))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        decision = await engine.adecide_body(b"{}")

    assert decision.reasons[0].details == {"of": "1"}


# --- many at a time


async def test_tasks_share_a_bounded_number_of_connections() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa, SidecarEngine(opa.url, timeout=30, connections=4) as engine:
        found = await asyncio.gather(*(engine.adecide_body(b"{}") for _ in range(200)))

        assert ([outcome(one) for one in found], opa.connections) == ([ALLOWED] * 200, 4)


def request(number: int) -> Request:
    someone = Entity(type="user", id="a", properties={})
    return Request(
        subject=someone,
        action=Action(name="a", properties={}),
        resource=Entity(type="t", id=str(number), properties={}),
        context={},
    )


def test_a_batch_keeps_its_order_and_one_failure_to_itself(way: Way) -> None:
    def behave(peer: Peer) -> None:
        while peer.request():
            asked = json.loads(peer.last_request.partition(b"\r\n\r\n")[2])["input"]["resource"]["id"]
            peer.send(result(document(b'{"id":"%b"}' % asked.encode())) if asked != "7" else http(b"{}"))

    requests = [request(number) for number in range(50)]
    with HostileOpa(behave) as opa, SidecarEngine(opa.url) as engine:
        found = engine.decide_batch(requests) if way == "sync" else asyncio.run(engine.adecide_batch(requests))

    seen = [one.reasons[0].details.get("id", one.reasons[0].code) for one in found]
    assert seen == [str(number) if number != 7 else "engine.answer_invalid" for number in range(50)]


def test_an_empty_batch_is_empty(way: Way) -> None:
    with SidecarEngine("http://localhost:1") as engine:
        assert (engine.decide_batch([]) if way == "sync" else asyncio.run(engine.adecide_batch([]))) == []


# --- the circuit


def test_after_failures_in_a_row_opa_is_left_alone(way: Way) -> None:
    def behave(peer: Peer) -> None:
        peer.request()
        peer.send(http(b"", status=b"503 X"))

    with HostileOpa(behave) as opa, SidecarEngine(opa.url, failures=3, pause=3600) as engine:
        found = [outcome(decide(engine, way)) for _ in range(5)]

    not_ready = f"OPA at {opa.url} is not ready (503): nothing"
    assert (
        found
        == [("DENY", [("engine.unavailable", not_ready)])] * 3
        + [("DENY", [("engine.unavailable", f"{not_ready}; it is not asked again before a pause is over")])] * 2
    )
    assert len(opa.requests) == 3


def test_opa_is_asked_again_after_the_pause(way: Way, tmp_path: Path) -> None:
    path = tmp_path / "opa.sock"
    with SidecarEngine(f"unix://{path}", failures=1, pause=0.001) as engine:
        assert decide(engine, way).codes == ("engine.unavailable",)
        with HostileOpa(answering(result(ALLOW)), path):
            while (found := outcome(decide(engine, way))) != ALLOWED:
                assert found[1][0][0] == "engine.unavailable"

            assert outcome(decide(engine, way)) == ALLOWED


@pytest.mark.parametrize(
    "response", [http(b"{}"), http(b"", status=b"500 X"), http(b"", status=b"401 X"), b"junk\r\n\r\n"]
)
def test_a_request_that_opa_cannot_decide_does_not_open_the_circuit(way: Way, response: bytes) -> None:
    with HostileOpa(answering_once(response)) as opa, SidecarEngine(opa.url, failures=2, pause=3600) as engine:
        for _ in range(5):
            decide(engine, way)

    assert len(opa.requests) == 5


# --- the engine itself


def test_a_closed_engine_denies(way: Way) -> None:
    with HostileOpa(answering(result(ALLOW))) as opa:
        with SidecarEngine(opa.url) as engine:
            decide(engine, way)
        decision = decide(engine, way)

        message = f"OPA at {opa.url} was not asked: the engine is closed"
        assert outcome(decision) == ("DENY", [("engine.unavailable", message)])
        assert len(opa.requests) == 1


async def test_it_is_an_asynchronous_context_manager_too() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa:
        async with SidecarEngine(opa.url) as engine:
            assert outcome(await engine.adecide_body(b"{}")) == ALLOWED
        assert (await engine.adecide_body(b"{}")).codes == ("engine.unavailable",)


FORKING = """
import os, sys
from pdp.engine.opa.engine import SidecarEngine
with SidecarEngine(sys.argv[1]) as engine:
    verdicts = [engine.decide_body(b"{}").verdict]
    child = os.fork()
    verdicts.append(engine.decide_body(b"{}").verdict)
    if child == 0:
        os._exit(0 if verdicts == ["ALLOW"] * 2 else 1)
    _, status = os.waitpid(child, 0)
    sys.exit(status or (0 if verdicts == ["ALLOW"] * 2 else 1))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_takes_connections_of_its_own() -> None:
    with HostileOpa(answering(result(ALLOW))) as opa:
        done = subprocess.run([sys.executable, "-c", FORKING, opa.url], capture_output=True, check=False)

        assert (done.returncode, done.stderr, opa.connections, len(opa.requests)) == (0, b"", 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": 0.0}, "timeout: 0.0 is not a number of seconds (above 0, at most 3600)"),
        ({"timeout": float("nan")}, "timeout: nan is not a number of seconds (above 0, at most 3600)"),
        (
            {"connect_timeout": float("inf")},
            "connect_timeout: inf is not a number of seconds (above 0, at most 3600)",
        ),
        ({"pause": -1.0}, "pause: -1.0 is not a number of seconds (above 0, at most 3600)"),
        ({"connections": 0}, "connections: 0 is out of range (at least 1)"),
        ({"failures": 0}, "failures: 0 is out of range (at least 1)"),
        (
            {"token": "a\r\nX: y"},
            "token: it has characters that a bearer token must not have (see RFC 6750)",
        ),
        ({"token": ""}, "token: it has characters that a bearer token must not have (see RFC 6750)"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SidecarEngine("http://localhost", **arguments)  # type: ignore[arg-type]

    assert str(caught.value) == message


# --- TLS


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody has signed, in one file."""
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=opa"
    names = "subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *what.split(), "-addext", names, "-keyout", file, "-out", f"{file}.crt"],
        check=True,
        capture_output=True,
    )
    with file.open("ab") as both:
        both.write(Path(f"{file}.crt").read_bytes())
    return file


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")


@needs_openssl
def test_tls_with_a_certificate_that_is_trusted(way: Way, certificate: Path) -> None:
    much = result(
        document(b'"%b"' % (b"x" * 300_000)).replace(b'"details":"', b'"details":{"a":"').replace(b'x"', b'x"}')
    )
    with (
        HostileOpa(answering(result(ALLOW), much), certificate=certificate) as opa,
        SidecarEngine(opa.url, ca_file=certificate, timeout=30) as engine,
    ):
        found = [decide(engine, way) for _ in range(3)]

        assert [one.verdict for one in found] == [Verdict.ALLOW] * 3
        assert found[2].reasons[0].details == {"a": "x" * 300_000}
        assert (opa.connections, len(opa.requests)) == (1, 3)


@needs_openssl
def test_tls_with_a_certificate_that_nobody_vouches_for(way: Way, certificate: Path) -> None:
    with HostileOpa(answering(result(ALLOW)), certificate=certificate) as opa, SidecarEngine(opa.url) as engine:
        decision = decide(engine, way)

    message = f"OPA at {opa.url} cannot be reached: its certificate is not trusted: self-signed certificate"
    assert (outcome(decision), opa.requests) == (("DENY", [("engine.unavailable", message)]), [])


@needs_openssl
def test_tls_that_breaks_off_is_no_whole_answer(way: Way, certificate: Path) -> None:
    with (
        HostileOpa(answering_once(result(ALLOW)[:-5]), certificate=certificate) as opa,
        SidecarEngine(opa.url, ca_file=certificate) as engine,
    ):
        decision = decide(engine, way)

    message = f"OPA at {opa.url} broke off in the middle of its answer"
    assert outcome(decision) == ("DENY", [("engine.answer_invalid", message)])


def test_tls_where_none_is_spoken(way: Way) -> None:
    def behave(peer: Peer) -> None:
        peer.send(http(b"", status=b"400 Bad Request"))
        peer.wait_until_closed()

    with HostileOpa(behave) as opa, SidecarEngine(opa.url.replace("http", "https")) as engine:
        decision = decide(engine, way)

    assert decision.codes == ("engine.unavailable",)
    assert decision.reasons[0].message.startswith(f"OPA at https{opa.url[4:]} cannot be reached: ")


def test_certificates_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        SidecarEngine("https://localhost", ca_file=tmp_path / "ca.pem")

    assert str(caught.value) == (
        f"{tmp_path}/ca.pem: cannot be read as certificates: No such file or directory (give a file in PEM form)"
    )
