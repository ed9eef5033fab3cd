"""The service rejects malformed bodies, unknown paths and methods, and invalid headers with the documented errors."""

from pathlib import Path
from typing import Any

import httpx

from pdp.service.openapi import openapi_document
from tests.support.service import service

PATHS = openapi_document()["paths"]
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"}
# The answer to a hook always has the status 200, because the client would run the call for any other status.
HOOKS = "/v1/hooks/{client}"
WITH_BODY = sorted(
    path for path, methods in PATHS.items() if "requestBody" in methods.get("post", {}) and path != HOOKS
)
JSON = "application/json"

MALFORMED = {
    "not JSON": b"{",
    "two values": b"{} {}",
    "an array": b"[]",
    "a text": b'"session"',
    "null": b"null",
    "a key twice": b'{"session": {}, "session": {}}',
    "a key twice, once escaped": b'{"session": {}, "s\\u0065ssion": {}}',
    "a key twice, deep inside": b'{"session": {"claims": {"sub": "a", "sub": "b"}}}',
    "a lone surrogate": b'{"session": {"purpose": "\\ud800"}}',
    "a lone surrogate as a key": b'{"session": {"claims": {"\\udfff": 1}}}',
    "half a surrogate pair": b'{"session": {"purpose": "\\ud83dx"}}',
    "UTF-8 that encodes a surrogate": b'{"session": {"purpose": "\xed\xa0\x80"}}',
    "not UTF-8": b'{"session": {"purpose": "\xff"}}',
    "UTF-16": '{"session": {}}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"session": {}}',
    "not a number": b'{"session": {"facts": {"amount": NaN}}}',
    "infinity": b'{"session": {"facts": {"amount": 1e999}}}',
    "beyond exact doubles": b'{"session": {"facts": {"amount": 9007199254740993}}}',
    "a number of many digits": b'{"session": {"facts": {"amount": ' + b"9" * 10_000 + b"}}}",
    "arrays in arrays": b'{"session": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "objects in objects": b'{"session": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001,
    "unclosed arrays": b'{"session": ' + b"[" * 10_000,
    "a control character": b'{"session": {"purpose": "\x00"}}',
    "a comment": b'{"session": {} /* all */}',
    "a comma at the end": b'{"session": {},}',
}


async def test_malformed_body_is_a_bad_request(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client()
        answers = {
            (path, name): await client.post(shown(path), content=body, headers={"Content-Type": JSON})
            for path in WITH_BODY
            for name, body in MALFORMED.items()
        }
        assert {asked: (answer.status_code, code(answer)) for asked, answer in answers.items()} == {
            asked: (400, "a text" if is_authzen(asked[0]) else "service.bad_request") for asked in answers
        }


async def test_body_with_too_many_values_is_rejected(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client()
        for value in ("0", "[]", "{}", '{"a":0}', '"","a"'):
            body = '{"session": {"facts": {"all": [' + ",".join([value] * 30_001) + "]}}}"
            for path in WITH_BODY:
                answer = await client.post(shown(path), content=body, headers={"Content-Type": JSON})
                expected = "a text" if is_authzen(path) else "service.too_large"
                assert (path, answer.status_code, code(answer)) == (path, 413, expected)


async def test_wrong_content_type_is_a_bad_request(tmp_path: Path) -> None:
    kinds = ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application", "", "\xff")
    async with service(tmp_path) as served:
        client = served.client()
        answers = {
            (path, kind): await client.post(
                shown(path), content=b"{}", headers=[(b"Content-Type", kind.encode("latin-1"))]
            )
            for path in WITH_BODY
            for kind in kinds
        }
        assert {
            asked: (answer.status_code, "application/json" in answer.text) for asked, answer in answers.items()
        } == (dict.fromkeys(answers, (400, True)))


async def test_invalid_content_length_is_rejected(tmp_path: Path) -> None:
    lengths = ("-1", "1e3", "\xb2", "9" * 5000, "abc", "+5")
    async with service(tmp_path) as served:
        client = served.client()
        for length in lengths:
            headers = [(b"Content-Type", JSON.encode()), (b"Content-Length", length.encode("latin-1"))]
            answer = await client.post("/v1/proposals", content=b"{}", headers=headers)
            assert (length, answer.status_code, code(answer)) == (length, 413, "service.too_large")


async def test_undocumented_methods_are_not_allowed(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client()
        answers = {
            (method, path): await client.request(method, shown(path))
            for path, methods in PATHS.items()
            # The path of this request would be /v1/approvals/events, which is another endpoint.
            if path != "/v1/approvals/{approval_id}"
            for method in METHODS - {name.upper() for name in methods} - {"HEAD"}
        }
        assert {asked: (answer.status_code, code(answer)) for asked, answer in answers.items()} == {
            asked: (405, "service.method_not_allowed" if not is_authzen(asked[1]) else "a text") for asked in answers
        }
        assert {path: set(answer.headers["allow"].split(", ")) - {"HEAD"} for (_, path), answer in answers.items()} == {
            path: {name.upper() for name in PATHS[path]} for _, path in answers
        }


async def test_unknown_paths_are_not_found(tmp_path: Path) -> None:
    paths = (
        "/", "/v1", "/v1/", "/v1/proposals/", "/v2/proposals", "//v1/proposals", "/v1/audit/", "/redoc",
        "/v1/tokens/%2e%2e/x/y", "/v1/approvals/%00/grant/x", "/%ff", "/v1/" + "a" * 5000, "/.env",
        "/access/v1/evaluation/x", "/access/v2/evaluation", "/.well-known/openid-configuration",
    )  # fmt: skip
    async with service(tmp_path) as served:
        for client in (served.client(token=""), served.client()):
            answers = {path: await client.get(path) for path in paths}
            assert {path: (answer.status_code, code(answer)) for path, answer in answers.items()} == {
                path: (404, "a text" if is_authzen(path) else "service.not_found") for path in paths
            }


async def test_unknown_query_parameters_are_ignored(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client()
        hook = await client.post("/v1/hooks/claude-code?a=1&a=2", json={})
        ended = await client.post("/v1/runs/x/end?a=1&a=2")
        assert (hook.status_code, ended.status_code, ended.headers.get("content-type")) == (200, 204, None)


async def test_disconnected_client_gets_no_answer(tmp_path: Path) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async with service(tmp_path) as served:
        headers = [(b"authorization", f"Bearer {served.token()}".encode())]
        for path in ("/v1/tools", "/v1/proposals"):
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
            await served.app(scope, receive, send)


async def test_only_public_endpoints_answer_without_a_token(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client(token="")
        for path, methods in PATHS.items():
            for method, operation in methods.items():
                answer = await client.request(method, shown(path))
                if operation.get("security") == []:
                    assert answer.status_code in (200, 404)
                elif path == HOOKS:
                    denied = answer.json()["hookSpecificOutput"]["permissionDecision"]
                    assert (answer.status_code, denied) == (200, "deny")
                else:
                    assert (path, answer.status_code) == (path, 401)
                    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_answer_repeats_the_request_id_of_the_request(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client(token="")
        for given, comes_back in (("req-7", True), ("a" * 256, True), ("a" * 257, False), ("", False), (None, False)):
            headers = {} if given is None else {"X-Request-ID": given}
            for path in ("/healthz", "/v1/audit", "/nowhere", "/access/v1/evaluation"):
                answer = await client.get(path, headers=headers)
                assert len(answer.headers.get_list("x-request-id")) == 1
                assert (answer.headers["x-request-id"] == given) is comes_back


def shown(path: str) -> str:
    return path.format(
        approval_id="a" * 32,
        grant_id="a" * 32,
        call_id="b" * 32,
        run_id="run-1",
        token_id="c" * 16,
        tenant="default",
        client="claude-code",
    )


def is_authzen(path: str) -> bool:
    return path.startswith(("/access/", "/.well-known/"))


def code(answer: httpx.Response) -> Any:
    """Return the code of an error answer. Return `a text` for AuthZEN endpoints, whose errors have no code."""
    body = answer.json()
    if isinstance(body, str):
        return "a text"
    assert set(body) == {"error"}
    assert set(body["error"]) - {"hint"} == {"code", "message", "link"}
    assert body["error"]["link"].endswith(f"/reference/codes/{body['error']['code']}/")
    return body["error"]["code"]
