"""In examples/chat, a real webhook message becomes a line in a chat, in which texts of a model are no mark-up."""

import importlib.util
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from pdp import Client
from pdp.stores.sql.database import Database
from tests.support import PATIENCE, ROOT, until
from tests.support.payments import session, wire
from tests.support.service import APPROVER, running_service

SECRET = "whsec_" + "a2tr" * 8
HOSTILE = ("<!channel> *pay* [x](https://evil.example)", "@here www.evil.example :tada: _a_ `b` \u202e\n# now")


@pytest.fixture(scope="module")
def receiver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("receiver", ROOT / "examples/chat/receiver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def running(server: HTTPServer) -> Iterator[str]:
    """Run a server in a thread, and yield its URL."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def chat(posts: "queue.Queue[Any]", *statuses: int) -> HTTPServer:
    """Return a server that stands for a chat. It answers with `statuses`, then with 200."""
    answers = [*statuses]

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(answers.pop(0) if answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return HTTPServer(("127.0.0.1", 0), Chat)


@pytest.mark.process
def test_chat_gets_one_plain_line_with_the_link_of_a_new_approval(tmp_path: Path, receiver: ModuleType) -> None:
    posts: queue.Queue[Any] = queue.Queue()
    with ExitStack() as stack:
        chat_url = stack.enter_context(running(chat(posts, 503)))
        bridge = receiver.Bridge(chat_url)
        hook = stack.enter_context(running(receiver.served(0, SECRET, bridge)))
        tenant = {"webhooks": [{"url": hook, "secret": SECRET, "private": True}]}
        served = stack.enter_context(running_service(tmp_path, tenant=tenant))
        bridge._client = stack.enter_context(Client(served.url, token=served.token(["approve"], APPROVER)))
        with Database.open(served.store) as database, database.read() as connection:
            assert until(lambda: connection.exec_driver_sql("SELECT count(*) FROM pdp_webhooks").scalar_one())
        ids = []
        for key, text in enumerate(HOSTILE, 1):
            stated = {"facts": session().facts, "idempotency_key": f"key-{key}"}
            proposed = {"proposal": wire(amount=key * 30000, reference=text), "session": stated}
            answer = served.client().post("/v1/proposals", json=proposed).json()
            ids.append(answer["approval"]["id"])
        refused, first, second = [posts.get(timeout=PATIENCE) for _ in range(3)]

        assert refused["text"].splitlines()[1] == first["text"].splitlines()[1]
        for approval_id, amount, post in zip(ids, (30000, 60000), (first, second), strict=True):
            line, link = post["text"].splitlines()
            assert link == f"{served.url}/console/approvals/{approval_id}"
            assert line.startswith(f'Waits for approval: initiate_wire: "bene-acme-441" with amount {amount}, ')
            assert "asked by officer-123" in line
            assert not {*"<>*[]()@#`~|/\\&!\u202e"} & {*line}
            assert not [each for each in ("evil.", ":tada:", "_a_", " _") if each in line]
        assert len(receiver.plain("a" * 100_000)) < 400
        forged = httpx.post(hook, json={"type": "approval.opened"}, headers={"webhook-timestamp": "1"})
        assert (forged.status_code, posts.empty()) == (401, True)
