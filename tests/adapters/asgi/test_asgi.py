"""FastAPI and Starlette applications run only requests that the ASGI adapter allows."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from pdp import Approvals, Pep
from pdp.adapters.asgi import AsgiMiddleware
from pdp.errors import UsageError
from pdp.testing.conformance.world import World
from tests.adapters.asgi.target import guarded
from tests.conformance.local import opened_pep
from tests.support import PATIENCE, until

BILL = {"payee": "a", "amount": 500.0}
TOOLS = {"POST /notes/{note}": "read_note", "GET /notes/{note}": "read_note", "PUT /bills": "pay_bill"}


@pytest.fixture
def app(ran: list[Any]) -> Starlette:
    async def told(request: Request) -> Response:
        kept = {name: value for name, value in request.headers.items() if name in ("x-kept", "content-type")}
        query, body = request.query_params.multi_items(), (await request.body()).decode()
        ran.append((request.method, request.path_params, query, body, kept))
        return JSONResponse({"read": True}, 201, {"x-own": "1"})

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    routes = [Route(path, told, methods=["GET", "POST", "PUT"]) for path in ("/notes/{note:path}", "/bills", "/health")]
    return Starlette(routes=[*routes, WebSocketRoute("/news", talk), WebSocketRoute("/talk", talk)])


@pytest.fixture
def client(app: Starlette, pep: Pep) -> Iterator[TestClient]:
    is_open = ("GET /health", "WEBSOCKET /news", "GET /notes/b")
    with TestClient(AsgiMiddleware(app, pep, World.session, TOOLS, is_open=is_open, longest=100)) as opened:
        yield opened


JSON = {"Content-Type": "application/json"}
REFUSED: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "no route": (403, "GET", "/secrets", {}),
    "another method": (403, "DELETE", "/notes/a", {}),
    "only the headers": (403, "HEAD", "/notes/a", {}),
    "a slash at the end": (403, "GET", "/notes/a/", {}),
    "an encoded slash": (403, "GET", "/notes%2Fa", {}),
    "a path that leads up": (403, "GET", "/notes/%2e%2e", {}),
    "nothing in the path": (403, "GET", "/notes/", {}),
    "one of two routes": (403, "GET", "/notes/b", {}),
    "another case": (403, "GET", "/Notes/a", {}),
    "a query twice": (400, "GET", "/notes/a?page=1&page=2", {}),
    "a query that is none": (400, "GET", "/notes/a?page", {}),
    "an argument twice": (400, "GET", "/notes/a?note=b", {}),
    "a query that is no UTF-8": (400, "GET", "/notes/a?page=%ff", {}),
    "a form": (400, "POST", "/notes/a", {"data": {"page": "1"}}),
    "no type": (400, "POST", "/notes/a", {"content": b"{}"}),
    "two types": (400, "POST", "/notes/a", {"content": b"{}", "headers": [*JSON.items(), ("Content-Type", "x/y")]}),
    "a body that is encoded": (
        400,
        "POST",
        "/notes/a",
        {"content": b"x", "headers": {**JSON, "Content-Encoding": "gzip"}},
    ),
    "a list": (400, "POST", "/notes/a", {"json": []}),
    "a name twice": (400, "POST", "/notes/a", {"content": b'{"page": 1, "page": 2}', "headers": JSON}),
    "no number": (400, "POST", "/notes/a", {"content": b'{"page": NaN}', "headers": JSON}),
    "too long a body": (413, "POST", "/notes/a", {"json": {"note": "a" * 100}}),
    "too long a body in parts": (413, "POST", "/notes/a", {"content": iter([b"a" * 60] * 2), "headers": JSON}),
    "another argument": (403, "POST", "/notes/a", {"json": {"loud": True}}),
    "an argument of another type": (403, "GET", "/notes/a?page=one", {}),
    "one that is held": (403, "PUT", "/bills", {"json": BILL}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rejected_request_does_not_reach_the_application(client: TestClient, ran: list[Any], case: str) -> None:
    status, method, url, options = REFUSED[case]

    response = client.request(method, url, **options)

    assert (response.status_code, ran) == (status, [])
    assert response.headers["content-type"] == "application/problem+json"


def test_problem_response_has_code_detail_and_approval(client: TestClient, pep: Pep) -> None:
    no_tool, held = client.get("/secrets").json(), client.put("/bills", json=BILL).json()

    assert pep.approvals is not None
    approval = pep.approvals.list()[0]
    assert no_tool == {
        "title": "Forbidden",
        "status": 403,
        "code": "INVALID_TOOL_NAME",
        "detail": "INVALID_TOOL_NAME: no tool has this method and path",
    }
    assert held == {
        "title": "Forbidden",
        "status": 403,
        "code": "POLICY_VIOLATION",
        "detail": held["detail"],
        "outcome": "held",
        "approval": {
            "approval_id": approval.id,
            "tool": "pay_bill",
            "reasons": ["approvals.required"],
            "approvers": ["kit.approver"],
            "expires_at": approval.expires_at,
            "url": None,
        },
    }


SENT: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "path and query": (
        "GET", "/notes/%C3%A4%20b?page=2", {"headers": {"X-Kept": "1", "Accept-Encoding": "gzip"}},
        ("GET", {"note": "ä b"}, [("page", "2")], "", {"x-kept": "1"}),
    ),
    "a body, in parts": (
        "POST", "/notes/a", {"content": iter([b'{"pa', b'ge" : 2.50}']), "headers": JSON},
        ("POST", {"note": "a"}, [], '{"page":2.5}', {"content-type": "application/json"}),
    ),
    "a type with a parameter": (
        "POST", "/notes/a", {"content": b"{}", "headers": {"Content-Type": "application/json; charset=utf-8"}},
        ("POST", {"note": "a"}, [], "{}", {"content-type": "application/json"}),
    ),
    "no body": ("POST", "/notes/a", {}, ("POST", {"note": "a"}, [], "", {})),
}  # fmt: skip


@pytest.mark.parametrize("case", SENT)
def test_application_gets_the_decided_arguments(client: TestClient, ran: list[Any], case: str) -> None:
    method, url, options, got = SENT[case]

    response = client.request(method, url, **options)

    assert (response.status_code, response.json(), response.headers["x-own"]) == (201, {"read": True}, "1")
    assert ran == [got]


def test_corrected_argument_stays_in_path_or_query(pep: Pep, ran: list[Any]) -> None:
    app = FastAPI()

    @app.get("/pages/{url}")
    def fetch_page(url: str, limit: int) -> None:
        ran.append((url, limit))

    inner = AsgiMiddleware(app, pep, World.session, {"GET /pages/{url}": "fetch_page"})
    with TestClient(inner, root_path="/mounted") as client:
        response = client.get("/mounted/pages/a", params={"limit": 99})

    assert (response.status_code, ran) == (200, [("a", 10)])


def test_requests_to_open_routes_pass_and_guarded_websockets_are_closed(client: TestClient, ran: list[Any]) -> None:
    with client.websocket_connect("/news"):
        pass
    with pytest.raises(WebSocketDisconnect) as caught, client.websocket_connect("/talk"):
        pass

    assert client.get("/health").status_code == 201
    assert caught.value.code == 1008


class Authenticated:
    """The application's authentication, which runs before the guard and derives the user only from the token."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = dict(scope.get("headers", ())).get(b"authorization")
        claims = World.session["claims"]
        known = {b"main": claims, b"sub": {**claims, "act": {"sub": "agent:sub", "scopes": ["kit.use"]}}}
        await self.app({**scope, "user": known.get(token or b"")}, receive, send)


@pytest.mark.parametrize(("token", "agent"), [("main", "agent:kit"), ("sub", "agent:sub"), ("nobody", None)])
def test_session_function_gets_the_asgi_scope(app: Starlette, pep: Pep, token: str, agent: str | None) -> None:
    def session(scope: Any) -> dict[str, Any]:
        return {"claims": scope["user"], "agent": scope["user"]["act"]["sub"]}

    with TestClient(Authenticated(AsgiMiddleware(app, pep, session, TOOLS))) as client:
        held = client.put("/bills", json=BILL, headers={"Authorization": token, "X-User": "person-1"}).json()

    assert pep.approvals is not None
    assert [approval.agent for approval in pep.approvals.list()] == ([agent] if agent else [])
    assert held["outcome"] == ("held" if agent else "denied")


async def test_request_does_not_run_if_the_caller_disconnects_before_the_decision(tmp_path: Path) -> None:
    with closing(World(tmp_path / "world")) as world, opened_pep(world) as pep:
        app, ended = guarded(world, pep), asyncio.Event()

        async def served(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            ended.set()

        with socket.create_server(("127.0.0.1", 0)) as listening:
            http = uvicorn.Server(uvicorn.Config(served, log_level="error", lifespan="off"))
            serving = asyncio.create_task(http.serve(sockets=[listening]))
            world.engine.become("slow")
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(b"POST /read_note HTTP/1.1\r\nHost: kit\r\nContent-Type: application/json\r\n")
            writer.write(b'Transfer-Encoding: chunked\r\n\r\ne\r\n{"note": "me"}\r\n0\r\n\r\n')
            await writer.drain()
            assert await asyncio.to_thread(until, world.engine.asked.is_set)
            writer.close()
            await writer.wait_closed()
            world.engine.become("plain")
            await asyncio.wait_for(ended.wait(), PATIENCE)
            http.should_exit = True
            await serving

        assert world.ran() == []


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"a" * 1000
        await asyncio.sleep(0)


RESPONSES: dict[str, tuple[Any, int, Any]] = {
    "one that is streamed is whole": (lambda: StreamingResponse(iter(["a", "b"])), 200, "ab"),
    "one without an end": (lambda: StreamingResponse(endless()), 502, "the response is longer than 5000 bytes"),
    "one that is encoded": (lambda: Response("x", headers={"Content-Encoding": "br"}), 502, "HTTP 502"),
    "an error that is told": (lambda: JSONResponse({"detail": "no /srv/a"}, 404), 404, "no <path>"),
    "an error with its inside": (lambda: JSONResponse({"rows": ["secret"]}, 500), 500, "HTTP 500"),
    "an exception": (lambda: 1 / 0, 500, "ZeroDivisionError"),
    "none": (None, 500, "HTTP 500"),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_guarded_response_is_sent_only_when_complete(pep: Pep, case: str) -> None:
    make, status, text = RESPONSES[case]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if make is not None:
            await make()(scope, receive, send)

    response = TestClient(AsgiMiddleware(app, pep, World.session, TOOLS, longest=5000)).get("/notes/a")

    told = response.json()["detail"] if status >= 400 else response.text
    assert (response.status_code, told.removeprefix("TOOL_EXECUTION_FAILED: ")) == (status, text)


def test_guarded_application_with_gzip_sends_uncompressed_responses(pep: Pep) -> None:
    app = Starlette(
        routes=[Route("/notes/{note}", lambda request: JSONResponse({"note": "a" * 1000}))],
        middleware=[Middleware(GZipMiddleware)],
    )

    with TestClient(AsgiMiddleware(app, pep, World.session, TOOLS)) as client:
        response = client.get("/notes/a", headers={"Accept-Encoding": "gzip"})

    assert (response.json(), "content-encoding" in response.headers) == ({"note": "a" * 1000}, False)


def payments(amount: str) -> FastAPI:
    app = FastAPI()

    @app.post("/payments/{beneficiary_id}/{source_account}", operation_id="validate_payment")
    def validate_payment(beneficiary_id: str, source_account: str, amount: float, reference: str) -> None:
        pass

    document = app.openapi()
    parameters = document["paths"]["/payments/{beneficiary_id}/{source_account}"]["post"]["parameters"]
    next(each for each in parameters if each["name"] == "amount")["schema"]["type"] = amount
    return app


@pytest.mark.parametrize("amount", ["number", "integer"])
def test_openapi_document_is_compared_with_the_manifest(amount: str) -> None:
    app = payments(amount)
    with Pep.from_project("examples/payments/pdp.yaml", approvals=Approvals()) as pep:
        found = []
        try:
            AsgiMiddleware(app, pep, World.session, app.openapi())
        except UsageError as error:
            found.append(error.message.partition(": ")[2])

    assert found == ([] if amount == "number" else ["validate_payment: amount: type number became integer"])


FAULTY: dict[str, tuple[Any, Any]] = {
    "no method": ({"/notes": "read_note"}, ()),
    "no path": ({"GET notes": "read_note"}, ()),
    "a part of a segment": ({"GET /notes/a-{note}": "read_note"}, ()),
    "of a tool and open": (TOOLS, ["PUT /bills", "WS /x"]),
    "no document": ({"openapi": "3.1.0"}, ()),
    "a document that refers to nothing": ({"openapi": "3.1.0", "paths": {"/a": {"get": {
        "operationId": "read_note", "requestBody": {"$ref": "#/nowhere"},
    }}}}, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY)
def test_application_with_unreadable_routes_does_not_start(app: Starlette, pep: Pep, case: str) -> None:
    tools, is_open = FAULTY[case]

    with pytest.raises(UsageError):
        AsgiMiddleware(app, pep, World.session, tools, is_open=is_open)
