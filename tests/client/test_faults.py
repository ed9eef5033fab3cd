"""If the service fails, `Pep.remote` runs only calls that the service has allowed, and reports each run of a tool."""

import asyncio
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from pdp import Pep
from pdp.client.client import Client
from pdp.client.pep import RemotePep
from pdp.errors import EngineError
from pdp.flow.evaluation import Evaluation
from pdp.json import thawed
from pdp.manifest.effective import made_of
from pdp.manifest.model import Tool
from tests.support import PATIENCE, until
from tests.support.hostile_opa import HostileOpa, Peer, http
from tests.support.payments import ARGUMENTS, effective, wire

SESSION = {"claims": {"sub": "officer-123"}, "idempotency_key": "k-1"}
DOWN = http(b"<html>", status=b"503 Service Unavailable")
REFUSED = http(b'{"error":{"code":"service.conflict","message":"no"}}', status=b"409 Conflict")
MANIFEST = effective()


def manifest(**changes: Any) -> bytes:
    """Return a response of the service that contains the manifest of the payments example."""
    tools = {
        name: tool.model_dump(mode="json", by_alias=True, exclude_none=True) for name, tool in MANIFEST.tools.items()
    }
    known = {
        "version": MANIFEST.version,
        "digest": MANIFEST.digest,
        "document": thawed(MANIFEST.document),
        "tools": tools,
    }
    return http(orjson.dumps({**known, **changes}))


def answer(**changes: Any) -> bytes:
    """Return the service's response to a call that may run now. `changes` replace fields of the response."""
    whole = {
        "outcome": {"status": "accepted", "proposal": wire()},
        "verdict": "ALLOW",
        "reasons": [{"code": "a.b", "message": "so it is", "details": {}}],
        "obligations": [],
        "codes": ["a.b"],
        "trace": {"tool_name": "initiate_wire", "manifest_version": MANIFEST.version},
        "decision_id": "d-1",
        "bundle_revision": "sha256:0",
        "id": "I" * 32,
        "begun": True,
        "arguments": ARGUMENTS,
        "running_until": 1.0,
        "manifest_digest": MANIFEST.digest,
        "approval": None,
        "action": None,
        "executed": False,
        "replayed": False,
        "result": None,
        "answer": {"text": "", "is_error": False},
        **changes,
    }
    return http(orjson.dumps(whole))


class Bank:
    """A bank whose transfer tool records every call."""

    def __init__(self, result: Any = "sent") -> None:
        self.wires: list[dict[str, Any]] = []
        self.result = result

    def __call__(self, **arguments: Any) -> Any:
        self.wires.append(arguments)
        return self.result


def serving(
    proposed: Sequence[bytes | None], reported: Sequence[bytes | None] = (None,), manifests: Sequence[bytes] = ()
) -> Callable[[Peer], None]:
    """Return a server that sends these responses, in order for each endpoint.

    The last response of an endpoint is repeated. Instead of a response None, the server closes the connection.
    """
    turns: dict[str, list[bytes | None]] = {"result": [*reported], "proposals": [*proposed]}
    turns["manifest"] = [*(manifests or [manifest()])]

    def behave(peer: Peer) -> None:
        while peer.request():
            line = peer.last_request.partition(b" HTTP")[0].decode()
            left = turns[line.rpartition("/")[2]]
            response = left.pop(0) if len(left) > 1 else left[0]
            if response is None:
                return
            sent = orjson.loads(peer.last_request.partition(b"\r\n\r\n")[2] or b"{}")
            own_id = sent.get("id") or line.split("/")[-2]
            peer.send(response.replace(b"I" * 32, own_id.encode()))

    return behave


def bodies(server: HostileOpa, ending: str) -> list[Any]:
    """Return the bodies of the requests whose path ends with `path`."""
    sent = [request.partition(b"\r\n\r\n") for request in server.requests]
    return [orjson.loads(body) for head, _, body in sent if head.partition(b" HTTP")[0].decode().endswith(ending)]


@contextmanager
def connected(behave: Callable[[Peer], None], bank: Bank | None = None) -> Iterator[tuple[RemotePep, HostileOpa]]:
    with (
        HostileOpa(behave) as server,
        Pep.remote(server.url, token="t", tools={"initiate_wire": bank} if bank else {}) as pep,  # noqa: S106 - fake
    ):
        yield pep, server


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.client.client.PATIENCE", 0.5)
    monkeypatch.setattr("pdp.client.pep.REPORT_PATIENCE", 0.5)


@pytest.fixture(params=["call", "acall"])
def call(request: pytest.FixtureRequest) -> Callable[..., Evaluation]:
    def called(pep: Any, *arguments: Any) -> Evaluation:
        evaluated = getattr(pep, request.param)(*arguments)
        evaluation: Evaluation = asyncio.run(evaluated) if request.param == "acall" else evaluated
        return evaluation

    return called


@pytest.mark.parametrize(
    ("response", "code", "message"),
    [
        (None, "engine.unavailable", "Server disconnected"),
        (DOWN, "engine.unavailable", "http.503"),
        (REFUSED, "engine.unavailable", "service.conflict: no"),
        (http(b"{}"), "engine.answer_invalid", "the service's answer about the call is malformed: id"),
        (http(b"nonsense"), "engine.answer_invalid", "not an answer of the decision service"),
        (answer(begun="yes"), "engine.answer_invalid", "about the call is malformed: begun"),
        (answer(begun=1), "engine.answer_invalid", "about the call is malformed: begun"),
        (answer(verdict="MAYBE"), "engine.answer_invalid", "about the call is malformed: verdict"),
        (answer(verdict="STEP_UP"), "engine.answer_invalid", "starts a call that the verdict does not allow"),
        (answer(verdict=None), "engine.answer_invalid", "starts a call that the verdict does not allow"),
        (answer(arguments=None), "engine.answer_invalid", "starts a call that the verdict does not allow"),
        (answer(id="another"), "engine.answer_invalid", "about another call"),
        (answer(arguments=[1]), "engine.answer_invalid", "about the call is malformed: arguments"),
        (answer(approval={"id": "a-1"}, begun=False), "engine.answer_invalid", "approval.state"),
    ],
)
def test_call_is_denied_if_the_answer_of_the_service_is_invalid(
    response: bytes | None, code: str, message: str, call: Callable[..., Evaluation]
) -> None:
    bank = Bank()
    with connected(serving([response]), bank) as (pep, server):
        evaluation = call(pep, wire(), SESSION)

    assert (evaluation.verdict, evaluation.codes, evaluation.executed, bank.wires) == ("DENY", (code,), False, [])
    assert message in evaluation.reasons[0].message
    assert len({body["id"] for body in bodies(server, "/proposals")}) == 1


def test_call_is_denied_if_the_service_is_unreachable_or_silent(
    call: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()
    with HostileOpa(serving([answer()])) as server:
        pep = Pep.remote(server.url, token="t", tools={"initiate_wire": bank})  # noqa: S106 - not a real token
    with pep:
        assert call(pep, wire(), SESSION).codes == ("engine.unavailable",)
    assert bank.wires == []

    def silent(peer: Peer) -> None:
        while peer.request():
            if b"/v1/manifest" not in peer.last_request:
                peer.wait_until_closed()
                return
            peer.send(manifest())

    defaults = {"token": None, "timeout": 0.5}
    monkeypatch.setattr(inspect.unwrap(Client.__init__), "__kwdefaults__", defaults)
    with connected(silent, bank) as (pep, server):
        assert call(pep, wire(), SESSION).codes == ("engine.timeout",)
    assert bank.wires == []


def test_tool_runs_once_if_an_answer_of_the_service_is_lost(
    call: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("client.PATIENCE", "pep.REPORT_PATIENCE"):
        monkeypatch.setattr(f"pdp.client.{name}", PATIENCE)
    bank = Bank()
    done = answer(begun=False, executed=True, result="confirmed")
    with connected(serving([None, answer()], [None, DOWN, done]), bank) as (pep, server):
        evaluation = call(pep, wire(), SESSION)

    assert (evaluation.executed, evaluation.result, bank.wires) == (True, "confirmed", [ARGUMENTS])
    assert [body["execution"] for body in bodies(server, "/result")] == [
        {"started": True, "attempts": 1, "result": "sent"}
    ] * 3
    assert len({orjson.dumps(body) for body in bodies(server, "/proposals")}) == 1


def test_tool_runs_with_the_arguments_that_the_service_returned(call: Callable[..., Evaluation]) -> None:
    bank, decided = Bank(), {**ARGUMENTS, "amount": 1}
    done = answer(begun=False, executed=True, result="confirmed")
    with connected(serving([answer(arguments=decided)], [done]), bank) as (pep, _server):
        call(pep, wire(), SESSION)

    assert bank.wires == [decided]


@pytest.mark.parametrize("response", [None, DOWN, REFUSED, http(b"{}"), http(b"nonsense")])
def test_caller_gets_no_result_if_the_result_cannot_be_reported_to_the_service(
    response: bytes | None, call: Callable[..., Evaluation], caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank("SECRET")
    with connected(serving([answer()], [response]), bank) as (pep, _server):
        evaluation = call(pep, wire(), SESSION)

    assert (evaluation.allowed, evaluation.executed, evaluation.result, len(bank.wires)) == (True, True, None, 1)
    assert evaluation.outcome.failure is not None
    assert evaluation.outcome.failure.details == {"effect": "unknown"}
    critical = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert re.match(r"could not report the outcome of call [0-9a-f]{32} of initiate_wire: ", critical[0])
    assert "SECRET" not in caplog.text + repr(evaluation)


def test_result_that_is_not_json_is_reported_as_a_failure(call: Callable[..., Evaluation]) -> None:
    failed = {"code": "TOOL_EXECUTION_FAILED", "message": "no", "details": {"effect": "done"}}
    done = answer(begun=False, executed=True, outcome={"status": "accepted", "failure": failed})
    with connected(serving([answer()], [done]), Bank(object())) as (pep, server):
        evaluation = call(pep, wire(), SESSION)

    assert evaluation.outcome.failure is not None
    assert evaluation.outcome.failure.details == {"effect": "done"}
    assert [body["execution"]["failure"]["details"]["effect"] for body in bodies(server, "/result")] == ["done"]


def test_call_of_a_tool_without_a_function_is_only_decided(call: Callable[..., Evaluation]) -> None:
    with connected(serving([answer(begun=False)])) as (pep, server):
        evaluation = call(pep, wire(), SESSION)

    assert [body["run"] for body in bodies(server, "/proposals")] == [False]
    assert evaluation.outcome.failure is not None
    assert (evaluation.outcome.failure.code, evaluation.executed) == ("TOOL_UNAVAILABLE", False)


def test_decide_never_runs_the_tool() -> None:
    bank = Bank()
    with connected(serving([answer()]), bank) as (pep, _):
        evaluations = [pep.decide(wire(), SESSION), asyncio.run(pep.adecide(wire(), SESSION))]

    assert [each.codes for each in evaluations] == [("engine.answer_invalid",)] * 2
    assert bank.wires == []


def test_client_reads_a_changed_manifest_again_before_the_tool_runs(call: Callable[..., Evaluation]) -> None:
    bank, done = Bank(), answer(begun=False, executed=True, result="confirmed")
    other = orjson.loads(manifest().partition(b"\r\n\r\n")[2])
    other["tools"]["initiate_wire"]["description"] = "another"
    made = made_of(
        MANIFEST.version, {name: Tool.model_validate(tool) for name, tool in other["tools"].items()},
        agents=MANIFEST.document.get("agents"),
    )  # fmt: skip
    newer = manifest(tools=other["tools"], digest=made.digest, document=thawed(made.document))
    with connected(serving([answer(manifest_digest=made.digest)], [done], [manifest(), newer]), bank) as (pep, _server):
        assert call(pep, wire(), SESSION).result == "confirmed"
        assert pep.manifest == made
    assert len(bank.wires) == 1


@pytest.mark.parametrize("second", [manifest(), DOWN, http(b"{}")])
def test_tool_does_not_run_if_the_changed_manifest_cannot_be_read(
    second: bytes, call: Callable[..., Evaluation]
) -> None:
    bank = Bank()
    failed = {"code": "TOOL_EXECUTION_FAILED", "message": "no", "details": {"effect": "none"}}
    done = answer(begun=False, outcome={"status": "accepted", "failure": failed})
    with connected(serving([answer(manifest_digest="sha256:1")], [done], [manifest(), second]), bank) as (pep, server):
        evaluation = call(pep, wire(), SESSION)

    assert (evaluation.executed, bank.wires) == (False, [])
    assert [body["execution"]["started"] for body in bodies(server, "/result")] == [False]


@pytest.mark.parametrize(
    "first", [manifest(digest="sha256:1"), manifest(tools={}), manifest(tools=1), http(b"{}"), manifest(version=None)]
)
def test_malformed_manifest_is_an_error(first: bytes) -> None:
    with HostileOpa(serving([], [], [first])) as server, pytest.raises(EngineError) as caught:
        Pep.remote(server.url, token="t")  # noqa: S106

    assert caught.value.code == "engine.answer_invalid"


async def test_call_cancelled_during_the_decision_is_reported_as_not_run() -> None:
    bank, asked, go = Bank(), threading.Event(), threading.Event()
    failed = {"code": "TOOL_EXECUTION_FAILED", "message": "no", "details": {"effect": "none"}}
    done = answer(begun=False, outcome={"status": "accepted", "failure": failed})

    def slowly(peer: Peer) -> None:
        while peer.request():
            if peer.last_request.startswith(b"POST /v1/proposals HTTP"):
                asked.set()
                go.wait()
                peer.send(answer(id=orjson.loads(peer.last_request.partition(b"\r\n\r\n")[2])["id"]))
            elif b"/manifest" in peer.last_request:
                peer.send(manifest())
            else:
                peer.send(done.replace(b"I" * 32, peer.last_request.split(b"/")[3]))

    with HostileOpa(slowly) as server:
        pep = await asyncio.to_thread(lambda: Pep.remote(server.url, token="t", tools={"initiate_wire": bank}))  # noqa: S106
        task = asyncio.create_task(pep.acall(wire(), SESSION))
        await asyncio.to_thread(asked.wait)
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(until, lambda: bodies(server, "/result"))
        await asyncio.to_thread(pep.close)

    assert (bank.wires, [body["execution"]["started"] for body in bodies(server, "/result")]) == ([], [False])
