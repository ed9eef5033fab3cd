"""`pdp serve` as a process: startup, shutdown, several workers, an OPA, and a second service on the same database."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.test_health import EVALUATION
from tests.service.test_proposals import SESSION, WIRE
from tests.support import PATIENCE, at_once, until
from tests.support.command_line import environment, pdp, written
from tests.support.payments import ARGUMENTS, BUNDLE, EXAMPLE
from tests.support.postgres import fresh_database
from tests.support.servers.alerts import check_alerts, scrape
from tests.support.servers.certificates import certificate
from tests.support.servers.identity_provider import DISCOVERY, FIRST, KEYS, identity_provider
from tests.support.service import APPROVER, RunningService, running_service, tenant_on

pytestmark = pytest.mark.process


def config_of(folder: Path, **settings: Any) -> Path:
    tenant = {"project": str(EXAMPLE / "pdp.yaml"), "store": f"sqlite:///{folder}/store.db"}
    return written(folder / "service.json", {"port": 0, "tenants": {"default": tenant}, **settings})


def logged(running: RunningService) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.log.read_text().splitlines()]


def messages(running: RunningService) -> list[str]:
    return [line["message"] for line in logged(running)]


def ended(running: RunningService) -> int:
    return running.process.wait(PATIENCE)


def open_request(running: RunningService, body: bytes) -> socket.socket:
    """Send the first part of a request. When the service has begun to read the request, return the connection."""
    url = httpx.URL(running.url)
    connection = socket.create_connection((url.host, url.port or 0), timeout=PATIENCE)
    connection.sendall(
        b"POST /access/v1/evaluation HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
        % (running.token(["decide"]).encode(), len(body))
    )
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


def whole(connection: socket.socket) -> tuple[int, list[str]]:
    """Read the whole answer, and return its status and its reason codes."""
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), codes(json.loads(body))


def codes(answer: dict[str, Any]) -> list[str]:
    """Return the reason codes of the service's answer, which must be a denial."""
    assert answer["decision"] is False
    return [reason["code"] for reason in answer["context"]["reasons"]]


@pytest.mark.parametrize("workers", [1, 2])
def test_service_answers_open_requests_during_shutdown(tmp_path: Path, workers: int) -> None:
    body = json.dumps(EVALUATION).encode()
    with running_service(tmp_path, workers=workers, limits={"body_seconds": 60}) as running, ExitStack() as owned:
        client = running.client(["decide"])
        usual = codes(client.post("/access/v1/evaluation", json=EVALUATION).json())
        connections = [owned.enter_context(open_request(running, body)) for _ in range(20)]
        running.process.send_signal(signal.SIGTERM)
        assert until(lambda: refused(running))
        for connection in connections:
            connection.sendall(body)

        assert [whole(connection) for connection in connections] == [(200, usual)] * 20
        assert ended(running) == 0


def refused(running: RunningService) -> bool:
    with suppress(httpx.TransportError):
        httpx.get(f"{running.url}/healthz")
        return False
    return True


SLOW = """
import sys, time

if "--multiprocessing-fork" in sys.orig_argv:
    time.sleep(6)
"""


def test_supervisor_replaces_a_dead_worker_and_metrics_cover_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers start slowly, and end when their supervisor is killed."""
    written(tmp_path / "sitecustomize.py", SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_service(tmp_path, workers=2) as running:

        def started() -> list[int]:
            begun = [line["message"] for line in logged(running) if line["message"].startswith("Started server")]
            return [int(message.split("[")[1][:-1]) for message in begun]

        assert until(lambda: len(started()) == 2)
        assert not [message for message in messages(running) if " ended: " in message]
        client = running.client(["decide", "audit"])
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda _: client.get("/healthz").raise_for_status(), range(100)):
                pass
        assert until(lambda: scrape(client).value("pdp_sweep_last_success_timestamp_seconds") > -PATIENCE)
        before = scrape(client)
        os.kill(started()[0], signal.SIGKILL)
        assert until(lambda: len(started()) == 3)

        def answers() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{running.url}/readyz").status_code == 200
            return False

        assert until(answers)
        assert until(lambda: scrape(client).value("pdp_workers") == 2)
        after = scrape(client)
        assert after.samples["pdp_http_requests_total", (("route", "/healthz"), ("status", "200"))] == 100
        check_alerts(tmp_path, [before, after], (), {"PdpWorkersRestarting"})
        assert f"worker {started()[0]} ended: killed by SIGKILL; starting a new worker" in messages(running)
        port = httpx.URL(running.url).port or 0
        running.process.kill()

        def is_free() -> bool:
            with suppress(OSError):
                socket.create_server(("127.0.0.1", port)).close()
                return True
            return False

        assert until(is_free)


START_WITHOUT_PROJECT = """
from pathlib import Path
from pdp.service.server import serve_until_ended
from pdp.service.settings import read_settings

serve_until_ended(read_settings(Path("service.json"), {}), lambda settings, tokens: Path("pdp.yaml").unlink())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_service_exits_with_1_if_a_worker_cannot_start(tmp_path: Path, workers: int) -> None:
    files = {"manifest": EXAMPLE / "manifest.json", "governance": EXAMPLE / "governance.yaml", "bundle": BUNDLE}
    project = written(tmp_path / "pdp.yaml", {name: str(file) for name, file in files.items()})
    tenant = {"project": str(project), "store": f"sqlite:///{tmp_path}/store.db"}
    written(tmp_path / "service.json", {"port": 0, "workers": workers, "tenants": {"default": tenant}})

    done = subprocess.run(
        [sys.executable, "-c", START_WITHOUT_PROJECT], cwd=tmp_path, timeout=PATIENCE, check=False, capture_output=True
    )

    assert (done.returncode, b"pdp.yaml: no such file" in done.stderr) == (1, True)


def greeted(config: Path) -> tuple[dict[str, str], int]:
    """Start the service. Return the tokens that it prints, and the status of a request with the first token."""
    command = [sys.executable, "-m", "pdp", "serve", "--config", str(config), "--json"]
    with ExitStack() as owned:
        process = owned.enter_context(
            subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
        owned.callback(process.terminate)
        assert process.stdout is not None
        told = json.loads("".join(takewhile("}\n".__ne__, process.stdout)) + "}")
        bearer = {"Authorization": f"Bearer {told['tokens'].get('default', 'none')}"}
        return told["tokens"], httpx.get(f"{told['url']}/v1/tokens", headers=bearer).status_code


def test_first_service_token_is_shown_once_and_has_the_scope_admin(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (first, status), second = greeted(config), greeted(config)

    assert (list(first), first["default"][:4], status) == (["default"], "pdp_", 200)
    assert second == ({}, 401)


def test_first_token_is_written_by_one_of_several_services_and_never_lost(tmp_path: Path) -> None:
    tenants = {"default": tenant_on(fresh_database()) | {"project": str(EXAMPLE / "pdp.yaml")}}
    file, config, place = tmp_path / "tokens", tmp_path / "service.json", ("--store", tenants["default"]["store"])
    file.touch()
    missing = tmp_path / "none" / "tokens"
    for stated in (file, missing):
        written(config, {"port": 0, "tenants": tenants, "first_token_file": str(stated)})
        failed = pdp("serve", "--config", config)
        assert (failed.code, failed.out) == (2, "")
        assert failed.err.startswith(f"error: first_token_file {stated}: cannot be written: ")
        assert pdp("token", "list", *place).out == "no tokens\n"
    file.unlink()

    written(config, {"port": 0, "tenants": tenants, "first_token_file": str(file)})
    told = at_once([partial(greeted, config)] * 2)
    first = file.read_text().removesuffix("\n")
    file.rename(tmp_path / "moved")
    written(config, {"port": 0, "tenants": {**tenants, "other": tenant_on(f"sqlite:///{tmp_path}/o.db")
        | {"project": str(EXAMPLE / "pdp.yaml")}}, "first_token_file": str(file)})  # fmt: skip
    later = greeted(config)

    # The output does not contain the token.
    assert sorted(told, key=str) == [({"default": f"see {file}"}, 401), ({}, 401)]
    assert later == ({"other": f"see {file}"}, 401)
    other = file.read_text().split()
    assert (other[0], len(other), file.stat().st_mode & 0o777) == ("other", 2, 0o600)
    listed = pdp("token", "list", *place, "--json").json
    assert [token["id"] for token in listed] == [first[4:20], other[1][4:20]]
    for url in (place[1], f"sqlite:///{tmp_path}/o.db"):
        shown = pdp("audit", "show", url, "--json")
        assert (shown.json["type"], shown.json["subject"]) == ("token.created", "pdp serve")


def opa_of(running: RunningService) -> int | None:
    """Return the process id of the OPA that the service started."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if (
                lines["Name"].startswith("opa")
                and lines["PPid"] == str(running.process.pid)
                and lines["State"][0] != "Z"
            ):
                return int(status.parent.name)
    return None


@pytest.mark.opa
def test_service_denies_calls_until_a_killed_opa_is_restarted(tmp_path: Path) -> None:
    with running_service(tmp_path, tenant={"engine": "sidecar"}) as running:
        client = running.client()

        def asked() -> list[str]:
            answer = client.post("/access/v1/evaluation", json=EVALUATION)
            assert answer.status_code == 200
            return codes(answer.json())

        usual, first = asked(), opa_of(running)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        meanwhile = asked()
        assert until(lambda: asked() == usual)
        assert opa_of(running) not in (None, first)

    assert (meanwhile, usual) == (["engine.unavailable"], ["manifest.unknown_action"])


@pytest.mark.opa
def test_two_services_on_one_database_share_approvals_and_results(tmp_path: Path) -> None:
    url = fresh_database()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        running_service(tmp_path / "a", url=url, tenant={"engine": "sidecar"}) as first,
        running_service(tmp_path / "b", url=url, tenant={"engine": "sidecar"}) as second,
        ExitStack() as owned,
    ):
        token = first.token()
        bearer = {"Authorization": f"Bearer {token}"}
        one, other = (
            owned.enter_context(httpx.Client(base_url=each.url, headers=bearer, timeout=PATIENCE))
            for each in (first, second)
        )
        approver = second.client(["approve"], APPROVER)
        amounts = [100, 24999, 25000, 25001, 47500, 10**7]
        asked = [
            {"run": False, "proposal": {**WIRE, "arguments": {**ARGUMENTS, "amount": amount}}, "session": SESSION}
            for amount in amounts
        ]
        answers = [[each.post("/v1/proposals", json=body).json() for body in asked] for each in (one, other)]
        assert [(answer["verdict"], answer["codes"]) for answer in answers[0]] == [
            (answer["verdict"], answer["codes"]) for answer in answers[1]
        ]
        assert {answer["verdict"] for answer in answers[0]} == {"ALLOW", "STEP_UP"}

        # Each service can grant an approval that the other service opened. The approved call begins in only one
        # service.
        approval = one.post("/v1/proposals", json={"proposal": WIRE, "session": SESSION}).json()["approval"]["id"]
        granted = approver.post(f"/v1/approvals/{approval}/grant")
        shown = [{**each.get(f"/v1/approvals/{approval}").json(), "url": None} for each in (one, other)]
        assert (granted.status_code, shown[0]["state"], shown[0]) == (200, "granted", shown[1])
        body: dict[str, Any] = {"proposal": WIRE, "session": SESSION}
        begun = [
            answer.json()
            for answer in at_once([partial(each.post, "/v1/proposals", json=body) for each in (one, other)])
        ]
        codes = [answer["error"]["code"] for answer in begun if "error" in answer]
        assert codes == ["idempotency.in_flight"]
        call = next(answer["id"] for answer in begun if answer.get("begun"))
        outcome = {"execution": {"result": {"wire_id": "w-1"}}}
        done = [each.post(f"/v1/proposals/{call}/result", json=outcome).json()["result"] for each in (other, one)]
        assert done == [{"wire_id": "w-1"}] * 2
        events = [each.get("/v1/audit").json() for each in (one, other)]
        assert events[0] == events[1]

    verified = pdp("audit", "verify", url)
    assert (verified.code, verified.err) == (0, "")


def test_service_uses_tls_on_interfaces_other_than_loopback(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "localhost")
    with running_service(tmp_path, host="0.0.0.0", tls_cert=str(cert), tls_key=str(key)) as running:  # noqa: S104
        port = httpx.URL(running.url).port
        trusted = ssl.create_default_context(cafile=str(cert))
        answer = httpx.get(f"https://localhost:{port}/healthz", verify=trusted)

    assert running.url == f"https://0.0.0.0:{port}"
    assert (answer.status_code, answer.headers.get("server")) == (200, None)


def test_check_config_reports_a_valid_configuration(tmp_path: Path) -> None:
    done = pdp("serve", "--config", config_of(tmp_path), "--check-config", "--json")

    assert (done.code, done.json, done.err) == (0, {"url": "http://127.0.0.1:0", "tenants": ["default"]}, "")


def test_service_does_not_start_with_another_audit_key_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = f"sqlite:///{tmp_path}/store.db", written(tmp_path / "audit.key", "a" * 64)
    tenant = {"project": str(EXAMPLE / "pdp.yaml"), "store": url, "audit_key_file": str(key)}
    config = config_of(tmp_path, tenants={"default": tenant})
    monkeypatch.setenv("PDP_AUDIT_KEY", "a" * 64)
    pdp("db", "upgrade", url)
    assert pdp("token", "create", "ops", "--scope", "admin", "--store", url).code == 0
    good = pdp("serve", "--config", config, "--check-config")
    written(key, "b" * 64)

    lost = pdp("serve", "--config", config, "--check-config")

    assert (good.code, lost.code, lost.out) == (0, 1, "")
    assert "written with another key" in lost.err


def test_check_config_fails_without_an_answer_of_opa(tmp_path: Path) -> None:
    done = pdp("serve", "--config", config_of(tmp_path), "--opa-url", "http://127.0.0.1:1", "--check-config")

    assert (done.code, done.err.partition(": ")[2][:36]) == (1, "tenant default: engine.unavailable: ")


def test_check_config_reports_every_fault(tmp_path: Path) -> None:
    with identity_provider() as good, identity_provider() as bad:
        bad.put(KEYS, {"keys": []})
        bad.put(DISCOVERY, {"issuer": "https://other.example"})
        console = {"client_id": "pdp", "client_secret": "secret"}
        project = str(EXAMPLE / "pdp.yaml")
        tenants = {name: {"project": project, "store": f"sqlite:///{tmp_path}/{name}.db"} for name in "ab"}
        tenants["a"]["opa_url"] = "http://127.0.0.1:1"
        oidc = [each.settings(tenant="b", console=console) for each in (good, bad)]
        oidc += [good.settings(tenant="b", jwks_url="http://127.0.0.1:1/keys", audience="else")]
        down = pdp("serve", "--config", config_of(tmp_path, tenants=tenants, oidc=oidc), "--check-config")
        bad.publish(FIRST)
        discovery = pdp("serve", "--config", config_of(tmp_path, tenants=tenants, oidc=oidc), "--check-config")
        tenants["b"]["audit_key_file"] = "nowhere.key"
        both = pdp("serve", "--config", config_of(tmp_path, tenants=tenants, oidc=oidc), "--check-config")
        good_only = config_of(tmp_path, oidc=[good.settings(console=console)])
        assert pdp("serve", "--config", good_only, "--check-config").code == 0

    starts = [
        f"error: oidc {bad.url}: {bad.url}/keys has no usable key",
        f"error: oidc {good.url}: All connection attempts failed",
        "error: tenant a: engine.unavailable: OPA at http://127.0.0.1:1 cannot be reached: ",
        "    hint: for the remedy, run: pdp explain engine.unavailable",
        "    more: pdp explain engine.unavailable",
    ]
    assert (down.code, down.out) == (1, "")
    assert [line[: len(start)] for line, start in zip(down.err.splitlines(), starts, strict=True)] == starts
    assert f"error: oidc {bad.url}: {bad.url}/.well-known/openid-configuration is about another issuer" in discovery.err
    assert (both.code, both.err.splitlines()[-2].partition(": cannot")[0]) == (
        2, f"error: audit_key_file {tmp_path}/nowhere.key",
    )  # fmt: skip


def test_startup_reports_unusable_resources(tmp_path: Path) -> None:
    empty = fresh_database()
    broken = written(tmp_path / "broken.pem", "no certificate")
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    config = config_of(tmp_path)
    tls = written(tmp_path / "tls.json", json.loads(config.read_text()) | {"tls_cert": str(broken)})
    tenant = json.loads(config.read_text())["tenants"]["default"] | {"audit_key_file": str(broken)}
    key = written(tmp_path / "key.json", {"tenants": {"default": tenant}})
    proxied = written(tmp_path / "proxied.json", json.loads(config.read_text()) | {"proxies": ["127.0.0.1"]})
    told = {
        "tables": pdp("serve", "--config", config, "--store", empty, "--check-config"),
        "certificate": pdp("serve", "--config", tls, "--check-config"),
        "project": pdp("serve", "--config", config, "--project", tmp_path / "none.yaml", "--check-config"),
        "port": pdp("serve", "--config", config, "--port", port),
        "address": pdp("serve", "--config", config, "--host", "192.0.2.1"),
        "key": pdp("serve", "--config", key, "--check-config"),
        "name": pdp("serve", "--config", proxied, "--host", "nowhere.invalid"),
        "served": pdp("serve", "--config", tls, "--workers", "2"),
    }
    taken.close()

    assert {name: done.code for name, done in told.items()} == dict.fromkeys(told, 2)
    assert "it has no tables yet\n    hint: run `pdp db upgrade URL`" in told["tables"].err
    assert told["certificate"].err.startswith(
        f"error: tls_cert {broken}: no certificate in PEM form (BEGIN CERTIFICATE)"
    )
    assert (told["served"].out, told["served"].err) == ("", told["certificate"].err)
    short = f"error: audit_key_file {broken}: has fewer than 32 bytes\n"
    assert told["key"].err == f"{short}    hint: create a key with `openssl rand -hex 32`\n"
    assert told["project"].err == f"error: {tmp_path}/none.yaml: no such file\n    hint: check the path\n"
    taken_port = f"error: cannot listen on 127.0.0.1, port {port}: Address already in use\n"
    assert "error: cannot listen on nowhere.invalid, port 0: " in told["name"].err
    assert "Unknown error" not in told["name"].err
    assert told["port"].err == f"{taken_port}    hint: choose another address with --host and --port\n"
    assert "host: other machines can reach 192.0.2.1" in told["address"].err
