"""The test world of a case: policy files, tools that record their arguments, and an engine with faults.

The engine is an HTTP server in place of OPA, so that its faults also reach enforcement points in other processes.
"""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from pdp.documents import read_document
from pdp.engine.opa.versions import OLDEST_GOOD
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.manifest.load import load_effective

Setting = Literal["plain", "raises", "beside", "down", "slow", "garbage", "stale"]
"""The fault of a test world. Faults from `down` on are those of the engine, and begin while a client is open.

- raises: calls of the enforcement point raise, or end its process
- beside: another handler, which allows everything, is registered beside that of the enforcement point
- down: the engine closes the connection
- slow: the engine answers after 10 s
- garbage: the engine's answer is an ALLOW that breaks off
- stale: the engine has an older policy release
"""


class StandInEngine(ThreadingHTTPServer):
    """An HTTP server at `url` that decides like OPA with the baseline. Requests set `asked`, `become` clears it."""

    setting: Setting = "plain"
    # The backlog is longer than the default of 5, with which parallel calls lose connections and time out.
    request_queue_size = 64

    def __init__(self, manifests: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _EngineRequestHandler)
        self.baseline = EmbeddedEngine.baseline(manifests=manifests)
        self.asked, self.mended = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def become(self, setting: Setting) -> None:
        """Set the fault of the engine; `plain` repairs it."""
        self.setting = setting
        self.asked.clear()
        (self.mended.set if setting == "plain" else self.mended.clear)()


class _EngineRequestHandler(BaseHTTPRequestHandler):
    server: StandInEngine

    def do_POST(self) -> None:
        engine, document = self.server, self.path.partition("?")[0].removeprefix("/v1/data/")
        asked = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        setting = engine.setting
        engine.asked.set()
        if setting == "slow":
            engine.mended.wait(10)
        decided = orjson.loads(engine.baseline.evaluate(orjson.dumps(asked), document))
        if "bundle" in decided:
            decided["bundle"]["release"] = 1 if setting == "stale" else 2
        whole = orjson.dumps({"provenance": {"version": OLDEST_GOOD}, "result": decided})
        text = b'{"result":{"verdict":"ALLOW"' if setting == "garbage" else whole
        with suppress(OSError):  # The client may have cancelled the request, so a broken connection is no error.
            if setting != "down":
                self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    def log_message(self, *_: object) -> None:
        pass


def run_body(record: Path, tool: str, arguments: Any) -> str:
    """Act as a tool: append the tool's name and arguments to the file `record`, and return a text.

    Args:
        record: the file `World.record`; each call is a line of JSON.
        tool: the name of the tool.
        arguments: the arguments that the tool got, as JSON.

    Raises:
        RuntimeError: the tool is `post_note`, which always fails.

    Examples:
        >>> run_body(Path("ran.jsonl"), "read_note", {"note": "a"})
        'read_note got {"note":"a"}'
    """
    # Each line is a single write, so that lines of several processes are not mixed.
    with record.open("ab", buffering=0) as file:
        file.write(orjson.dumps([tool, arguments]) + b"\n")
    if tool == "post_note":
        raise RuntimeError("the note is lost")
    return f"{tool} got {orjson.dumps(arguments).decode()}"


class World:
    """The test world of a case: a new `folder` with `pdp.yaml` and its files, and the file `record` of tool calls.

    `session` is the caller's session, and `approver` has the claims of a person who may approve. `setting` is the fault
    of the world; see `Setting`. `spelling` is the format of tool names; see `Target.spelling`.
    """

    session: Final[Any] = {
        "claims": {"sub": "person-1", "emts": {"kit.use": True}, "act": {"sub": "agent:kit", "scopes": ["kit.use"]}}
    }
    approver: Final = {"sub": "person-2", "roles": ["kit.approver"]}

    def __init__(self, folder: Path, setting: Setting = "plain", spelling: str = "{}") -> None:
        folder.mkdir(mode=0o700, parents=True)
        self.folder, self.setting, self.record = folder, setting, folder / "ran.jsonl"
        self.record.touch()
        manifest = read_document(Path(__file__).with_name("manifest.yaml")).value
        for tool in manifest["tools"]:
            tool["name"] = spelling.format(tool["name"])
        (folder / "manifest.yaml").write_bytes(orjson.dumps(manifest))
        (folder / "session.yaml").write_bytes(orjson.dumps(self.session))
        effective = load_effective(folder / "manifest.yaml", None)
        self.engine = StandInEngine({effective.digest: effective.document})
        files = {"manifest": "manifest.yaml", "session": "session.yaml", "store": "sqlite:///store.db"}
        engine = {"engine": "sidecar", "opa_url": self.engine.url}
        (folder / "pdp.yaml").write_bytes(orjson.dumps(files | engine))

    def close(self) -> None:
        """Stop the engine."""
        self.engine.shutdown()
        self.engine.server_close()

    def ran(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the calls that tools recorded so far, each as the tool's name and its arguments."""
        return [tuple(orjson.loads(line)) for line in self.record.read_bytes().splitlines()]
