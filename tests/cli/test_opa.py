"""`pdp opa` and `pdp decide --engine sidecar`, with an OPA that is missing, stopped, stuck, or sends wrong answers."""

import json
import sys
from pathlib import Path

import pytest

from pdp.engine.bundle.file import read_bundle
from pdp.opa.local import local_opa
from tests.support import PATIENCE
from tests.support.command_line import OPTIONS, codes, decided, pdp, written
from tests.support.hostile_opa import ALLOW, HostileOpa, answering, http, result, self_signed
from tests.support.payments import BUNDLE, EXAMPLE, wire
from tests.support.servers.opa import KINDS, opa_server, url_of


def program(folder: Path, script: str) -> Path:
    """Write a shell script that is run instead of the OPA program."""
    file = written(folder / "opa", f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def no_opa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables of a machine on which OPA is not installed."""
    monkeypatch.delenv("PDP_OPA", raising=False)
    for name in ("PATH", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


# pdp opa


@pytest.mark.opa
@pytest.mark.parametrize("command", ["path", "install"])
def test_opa_path_and_install_print_the_installed_program(
    opa: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """OPA is found even if no optional dependency of the package is installed."""
    monkeypatch.setenv("PDP_OPA", str(opa))
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "pdp.opa.install", raising=False)
    assert pdp("opa", command) == (0, f"{opa}\n", "")


@pytest.mark.usefixtures("no_opa")
def test_opa_path_exits_with_1_if_opa_is_missing() -> None:
    assert pdp("opa", "path") == (1, "", "error: OPA 1.22.4 is not installed\n    hint: run: pdp opa install\n")


@pytest.mark.parametrize("command", [("opa", "path"), ("opa", "install"), ("bundle", "build", "-o", "b.tar.gz")])
def test_variable_pdp_opa_with_a_wrong_program_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    file = program(tmp_path, "echo Version: 1.0.0")
    monkeypatch.setenv("PDP_OPA", str(file))
    fault = "is version 1.0.0, which is older than the versions that the policies are tested with"
    complaint = (
        f"error: PDP_OPA names {file}, which {fault}: use OPA 1.22.4 or later\n"
        "    hint: set it to OPA 1.22.4, or unset PDP_OPA\n"
    )
    assert pdp(*command) == (2, "", complaint)


DECIDE = ["decide", "-", *(part for option in OPTIONS.items() for part in option)]


@pytest.mark.usefixtures("no_opa")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([*DECIDE, "--engine", "sidecar"], "a sidecar"),
        ([*DECIDE, "--policies", EXAMPLE / "policies"], "compiling policies"),
        ([*DECIDE, "--policies", EXAMPLE / "policies", "--engine", "sidecar"], "compiling policies"),
        (["bundle", "build", "-o", "b.tar.gz"], "building a bundle"),
    ],
)
def test_command_without_opa_says_what_needs_it(arguments: list[object], what: str) -> None:
    complaint = (
        f"error: {what} needs Open Policy Agent 1.22.4, which is not installed\n    hint: run: pdp opa install\n"
    )
    assert pdp(*arguments, stdin=json.dumps(wire()).encode()) == (2, "", complaint)


@pytest.mark.usefixtures("no_opa")
def test_embedded_engine_needs_no_opa() -> None:
    assert decided(wire(), "--bundle", BUNDLE).code == 3


def test_opa_that_does_not_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = '[ "$1" = version ] && echo "Version: 1.22.4" && exit; echo "no room here" >&2; exit 3'
    monkeypatch.setenv("PDP_OPA", str(program(tmp_path, script)))
    assert decided(wire(), "--engine", "sidecar") == (
        1,
        "",
        "error: OPA did not start:\n  no room here\n    more: pdp explain engine.unavailable\n",
    )


# pdp opa status


@pytest.mark.opa
@pytest.mark.parametrize("kind", KINDS)
def test_status_of_running_opa_is_printed(kind: str, opa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = read_bundle(BUNDLE)
    with opa_server(kind, "--set=bundles.payments.resource=file://{folder}/payments.tar.gz") as client:
        url = url_of(client)
        client.wait_for_ready(PATIENCE, query={"bundles": "true"})
        done, as_json = pdp("opa", "status", "--opa-url", url), pdp("opa", "status", "--opa-url", url, "--json").json
    policies = sorted(f"payments/{path}" for path in bundle.modules)
    assert done == (
        0,
        (
            f"OPA at {url}\n"
            "version: 1.22.4\n"
            "health: server ok, bundles ok, plugins ok\n"
            f"decides with: release {bundle.release}, {bundle.revision}\n"
            f"bundle payments: {bundle.revision}\n"
            "plugins: not offered\n"
            "config: bundles, default_authorization_decision, default_decision, labels\n"
            f"policies: {', '.join(policies)}\n"
            "data: authz, config, custom, manifests\n"
        ),
        "",
    )
    assert (as_json["policies"], as_json["plugins"]) == (policies, None)
    assert as_json["health"] == {"server": True, "bundles": True, "plugins": True}

    with local_opa(opa, bundle=bundle, tcp=True) as locked:
        monkeypatch.setenv("OPA_OF_MINE", locked.token or "")
        line = ("opa", "status", "--opa-url", locked.url)
        admitted, refused = pdp(*line, "--token-env", "OPA_OF_MINE"), pdp(*line)
    assert (admitted.code, admitted.out.splitlines()[-3:]) == (
        0,
        ["config: not offered", "policies: not offered", "data: not offered"],
    )
    assert refused == (
        1,
        "",
        (
            f"error: OPA at {locked.url} refused the request (401): request rejected by administrative policy\n"
            "    hint: check the token, and that OPA's policy system.authz allows the request\n"
            "    more: pdp explain engine.unavailable\n"
        ),
    )


def test_opa_status_reports_an_unsupported_version() -> None:
    with HostileOpa(answering(result(b"{}", b'"provenance":{"version":"1.22.0"}'))) as server:
        done = pdp("opa", "status", "--opa-url", server.url)
    problem, version, _, nothing, *_ = done.out.splitlines()[1:]
    assert problem.startswith(f"problem: OPA at {server.url} is version 1.22.0, which loses rules")
    assert (done.code, version, nothing) == (1, "version: 1.22.0", "makes no decisions")


@pytest.mark.parametrize(
    ("behave", "message", "hint"),
    [
        (None, "cannot be reached: Connection refused", "check that OPA runs and that the URL is right"),
        (b"<html>Log in</html>", "answered something that is not JSON: '<html>Log in</html>'",
            "check that OPA listens at this URL"),
        (b'{"result":{}}', "does not report its version: use OPA 1.22.4 or later, or set accept_unknown_opa", None),
    ],
    ids=["down", "no OPA", "no version"],
)  # fmt: skip
def test_opa_status_rejects_a_server_that_is_not_opa(behave: bytes | None, message: str, hint: str | None) -> None:
    with HostileOpa(answering(http(behave or b""))) as server:
        if behave is None:
            server.__exit__()
        done = pdp("opa", "status", "--opa-url", server.url)
    end = f"    hint: {hint}\n" if hint else ""
    error, _, more = done.err.partition("    more: ")
    assert (done.code, done.out, error) == (1, "", f"error: OPA at {server.url} {message}\n{end}")
    assert more in ("pdp explain engine.unavailable\n", "pdp explain engine.answer_invalid\n")


def test_opa_status_reports_a_missing_url_or_an_invalid_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "    hint: give it with --opa-url, or as `opa_url:` in pdp.yaml\n"
    assert pdp("opa", "status") == (2, "", f"error: no opa_url given\n{hint}")
    with HostileOpa(answering(result(ALLOW)), certificate=self_signed(tmp_path)) as server:
        done = pdp("opa", "status", "--opa-url", server.url)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: OPA at {server.url} cannot be reached: [SSL: CERTIFICATE_VERIFY_FAILED]")


# A working sidecar


@pytest.mark.opa
@pytest.mark.parametrize("tcp", [False, True], ids=["Unix socket", "TCP with a token"])
def test_decide_uses_a_running_opa(opa: Path, monkeypatch: pytest.MonkeyPatch, tcp: bool) -> None:
    with local_opa(opa, bundle=read_bundle(BUNDLE), tcp=tcp) as running:
        monkeypatch.setenv("PDP_OPA_TOKEN", running.token or "")
        url = ["--engine", "sidecar", "--opa-url", running.url, "--json"]
        answers = [decided(wire(amount=amount), *url) for amount in (20000, 47500)]
        monkeypatch.setenv("PDP_OPA_TOKEN", "another")
        stranger = decided(wire(amount=20000), *url)
    assert [(done.code, codes(done)) for done in answers] == [
        (0, ["effects.gate_satisfied", "risk.acceptable"]),
        (3, ["limits.exceeded"]),
    ]
    assert answers[0].json["bundle_revision"] == read_bundle(BUNDLE).revision
    assert (stranger.code, codes(stranger)) == ((4, ["engine.unavailable"]) if tcp else (0, codes(answers[0])))


# A faulty sidecar


def test_call_is_denied_if_the_sidecar_returns_no_decision(tmp_path: Path) -> None:
    nobody = f"unix://{tmp_path}/opa.sock"
    with HostileOpa(answering(http(b"<html>ALLOW</html>", headers=b"Content-Type: text/html\r\n"))) as server:
        for url, code, message in (
            (nobody, "engine.unavailable", f"OPA at {nobody} cannot be reached"),
            (server.url, "engine.answer_invalid", "answered something that is not JSON: '<html>ALLOW</html>'"),
        ):
            done = decided(wire(amount=1), "--engine", "sidecar", "--opa-url", url, "--json")
            assert (done.code, done.json["verdict"], codes(done), done.err) == (4, "DENY", [code], "")
            assert message in done.json["reasons"][0]["message"]
            assert (done.json["outcome"]["status"], done.json["bundle_revision"]) == ("rejected", None)


def test_answer_of_the_sidecar_is_escaped_for_the_terminal() -> None:
    message = b'"message":"\\u001b[2J\\u009b\\nALLOW  initiate_wire"'
    reason = b'{"code":"x.y",%b,"details":{}}' % message
    document = b'{"verdict":"DENY","reasons":[%b],"obligations":[],"bundle":null}' % reason
    with HostileOpa(answering(result(document))) as server:
        done = decided(wire(amount=1), "--engine", "sidecar", "--opa-url", server.url)
    assert (done.code, done.out.splitlines()[:2]) == (
        4,
        ["DENY  initiate_wire", "  x.y  \\x1b[2J\\x9b\\nALLOW  initiate_wire"],
    )


def test_opa_token_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_OPA_TOKEN", "s3cret")
    with HostileOpa(answering(http(b"", status=b"401 Unauthorized"))) as server:
        done = decided(wire(), "--engine", "sidecar", "--opa-url", server.url)
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in server.requests[0]
    assert "s3cret" not in done.out + done.err


def test_invalid_opa_url_is_rejected() -> None:
    assert decided(wire(), "--engine", "sidecar", "--opa-url", "http://opa/v1/data") == (
        2,
        "",
        (
            "error: OPA's URL 'http://opa/v1/data' is not valid\n"
            "    hint: give http://HOST:PORT, https://HOST:PORT or unix:///PATH of at most 103 bytes\n"
        ),
    )


def test_invalid_opa_token_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_OPA_TOKEN", "two words")
    assert decided(wire(), "--engine", "sidecar", "--opa-url", "http://127.0.0.1:8181") == (
        2,
        "",
        (
            "error: OPA's token has characters that a bearer token must not have\n"
            "    hint: use letters, digits and -._~+/ with = at the end; check for spaces, line breaks and quotes\n"
        ),
    )


def test_local_opa_leaves_no_files(opa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert decided(wire(), "--engine", "sidecar", "--bundle", BUNDLE).code == 3
    assert list(tmp_path.iterdir()) == []
