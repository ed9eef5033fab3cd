"""A real OPA in a child process, and a sidecar engine that asks it."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from pdp.decision import GRANT, Decision
from pdp.engine.bundle.file import Bundle
from pdp.engine.opa.client import OpaClient, parse_address
from pdp.engine.opa.engine import SidecarEngine
from pdp.errors import EngineError
from pdp.json import canonical, digest
from pdp.opa.local import OpaServer, local_opa
from tests.support import ROOT, timely

pytestmark = pytest.mark.opa

Way = Literal["sync", "async"]


def policy(text: str, release: int = 1, **data: Any) -> Bundle:
    revision = digest(text.encode())
    config = {**data.get("config", {}), "bundle": {"revision": revision, "release": release}}
    wasm = b"\0asm, which OPA is not to see"
    return Bundle(revision, release, wasm, data={**data, "config": config}, modules={MODULE: text}, size=0)


MODULE = "authz/decision.rego"
POLICY = policy((ROOT / "tests/support/rego_sidecar/decision.rego").read_text())


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> Way:
    return "sync" if request.param == "sync" else "async"


def decide(engine: SidecarEngine, way: Way, body: bytes = b"{}") -> Decision:
    return engine.decide_body(body) if way == "sync" else asyncio.run(engine.adecide_body(body))


def outcome(decision: Decision) -> tuple[str, list[tuple[str, str, object]]]:
    return decision.verdict, [(reason.code, reason.message, reason.details) for reason in decision.reasons]


def status(opa: OpaServer, request: str, *, token: str | None = None) -> int:
    """Send a request and return the status of the answer. The text has `METHOD PATH`, and the body in the next line."""
    line, _, body = request.partition("\n")
    method, path = line.split()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = OpaClient(parse_address(opa.url), connect_timeout=5, connections=1, headers=headers)
    try:
        return client.exchange(method, path, body.encode() or None, 5).status
    finally:
        client.close()


@pytest.mark.parametrize("tcp", [False, True], ids=["Unix socket", "TCP"])
def test_local_opa_decides_with_policy(opa: Path, way: Way, tcp: bool) -> None:
    with local_opa(opa, bundle=POLICY, tcp=tcp) as local, SidecarEngine(local.url, token=local.token) as engine:
        found = [outcome(decide(engine, way, b'{"id":"%d"}' % number)) for number in range(3)]

    assert found == [("ALLOW", [(GRANT, "", {"id": str(number)})]) for number in range(3)]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"ask":"number","id":"9 eur"}', "engine.answer_invalid",
            "decision.rego:16: to_number: strconv.ParseFloat: parsing"),
        (b'{"ask":"conflict"}', "engine.answer_invalid",
            "decision.rego:24: rule data.authz.decision produced conflicting values:"),
        (b'{"ask":"nothing"}', "engine.answer_invalid", "has no document authz/decision"),
        (b'"text"', "engine.answer_invalid", "made no decision (500): "),
    ],
    ids=["a builtin fails", "two values", "undefined", "another type"],
)  # fmt: skip
def test_request_without_a_valid_answer_is_denied(opa: Path, way: Way, body: bytes, code: str, message: str) -> None:
    with local_opa(opa, bundle=POLICY) as local, SidecarEngine(local.url) as engine:
        decision = decide(engine, way, body)

    assert (decision.verdict, decision.codes) == ("DENY", (code,))
    assert message in decision.reasons[0].message


async def test_concurrent_callers_get_their_own_decisions(opa: Path) -> None:
    found: dict[str, object] = {}

    def ask(engine: SidecarEngine, name: str) -> None:
        for number in range(100):
            found[f"{name}{number}"] = engine.decide_body(b'{"id":"%b%d"}' % (name.encode(), number)).reasons[0].details

    async def aask(engine: SidecarEngine, name: str) -> None:
        found[name] = (await engine.adecide_body(b'{"id":"%b"}' % name.encode())).reasons[0].details

    with local_opa(opa, bundle=POLICY) as local, SidecarEngine(local.url) as engine:
        threads = [threading.Thread(target=ask, args=(engine, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(aask(engine, f"t{number}") for number in range(200)))
        for thread in threads:
            await asyncio.to_thread(thread.join)

    assert len(found) == 600
    assert [name for name, details in found.items() if details != {"id": name}] == []


# Access to OPA


@pytest.mark.parametrize("with_token", [False, True], ids=["without token", "with token"])
def test_policies_cannot_be_read_or_changed_over_tcp(opa: Path, with_token: bool) -> None:
    requests = {
        'PUT /v1/policies/a\npackage authz\ndecision := {"verdict": "ALLOW"}': 401,
        "DELETE /v1/policies/decision.rego": 401,
        'PUT /v1/data/settings\n{"a": 1}': 401,
        'PATCH /v1/data\n[{"op": "add", "path": "/a", "value": 1}]': 401,
        'POST /v1/query\n{"query": "x = 1"}': 401,
        "GET /v1/policies": 401,
        "GET /v1/data": 401,
        "GET /v1/data/system/authz": 401,
        "GET /v1/config": 401,
        "POST /v1/data/system/authz\n{}": 401,
        'PUT /v1/data/authz/decision\n{"verdict": "ALLOW"}': 401,
        "GET /v1/data/authz/decision": 401,
        "POST /v1/data/authz/decision\n{}": 200 if with_token else 401,
        "GET /health": 200,
    }
    with local_opa(opa, bundle=POLICY, tcp=True) as local:
        token = local.token if with_token else None
        found = {request: status(local, request, token=token) for request in requests}

    assert found == requests


# Manifests and data added to the bundle


ECHO = """package authz

decision := {"verdict": "DENY", "obligations": [], "bundle": data.config.bundle, "reasons": [{
	"code": "x.y", "message": "",
	"details": {"config": data.config.a, "settings": data.settings, "manifests": object.keys(data.manifests)},
}]}
"""


@pytest.mark.parametrize("tcp", [False, True], ids=["Unix socket", "TCP"])
def test_local_opa_uses_added_manifests_and_data(opa: Path, tcp: bool) -> None:
    first, second = (digest(canonical({name: 1})) for name in "ab")
    bundle = policy(ECHO, 7, config={"a": 1}, settings={"b": 1, "c": 1}, manifests={first: {"a": 1}})
    running = local_opa(opa, bundle=bundle, manifests={second: {"b": 1}}, data={"settings": {"c": 2}}, tcp=tcp)
    with running as local, SidecarEngine(local.url, token=local.token) as engine:
        decision = engine.decide_body(b"{}")
        if not tcp:
            # Only processes of the same user can connect to the socket.
            socket = Path(local.url.removeprefix("unix://"))
            assert (socket.parent.stat().st_mode & 0o777, socket.stat().st_mode & 0o777) == (0o700, 0o600)

    details = {"config": 1, "settings": {"b": 1, "c": 2}, "manifests": sorted([first, second])}
    assert outcome(decision) == ("DENY", [("x.y", "", details)])
    assert (decision.bundle_revision, decision.release) == (bundle.revision, 7)


def test_options_of_opa_in_the_environment_are_ignored(opa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPA_RUN_AUTHORIZATION", "basic")
    with local_opa(opa, bundle=POLICY) as local, SidecarEngine(local.url) as engine:
        assert engine.decide_body(b"{}").verdict == "ALLOW"


# Start and end of OPA


def program(tmp_path: Path, script: str) -> Path:
    file = tmp_path / "opa"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_error_of_a_policy_that_opa_cannot_load_is_shown(opa: Path) -> None:
    with pytest.raises(EngineError) as caught, local_opa(opa, bundle=policy("package authz\n\ndecision := \n")):
        pass

    lines = str(caught.value).splitlines()
    assert lines[0] == "OPA did not start:"
    assert f"{MODULE}:4: rego_parse_error: unexpected eof token" in lines[1] + lines[2]


def test_start_of_a_program_that_never_becomes_ready_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = program(tmp_path, "echo loading for ever\nexec sleep 60")

    def refusal(seconds: float) -> str:
        monkeypatch.setattr("pdp.opa.local._START_TIMEOUT", seconds)
        with pytest.raises(EngineError) as caught, local_opa(slow, bundle=POLICY):
            pass
        return re.sub("within .* s:", "within TIME s:", str(caught.value))

    # On a slow machine, the time may be too short for OPA to write anything, so the test also tries longer times.
    assert timely(refusal, lambda text: "wrote nothing" not in text) == (
        "OPA was not ready within TIME s:\n  loading for ever"
    )


def test_program_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught, local_opa(tmp_path / "opa", bundle=POLICY):
        pass

    message = f"{tmp_path}/opa: OPA cannot be run: No such file or directory (install it with `pdp opa install`)"
    assert str(caught.value) == message


def test_opa_ends_with_its_with_block_even_after_an_exception(opa: Path) -> None:
    urls = []

    def fail() -> None:
        with local_opa(opa, bundle=POLICY) as local:
            urls.append(local.url)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with SidecarEngine(urls[0]) as engine:
        assert engine.decide_body(b"{}").codes == ("engine.unavailable",)
    assert not Path(urls[0].removeprefix("unix://")).parent.exists()
