"""What surrounds an enforcement point in the suite: policy files, tools that say what they got, an engine with faults.

The engine is a stand-in for OPA on 127.0.0.1, so that whoever is tried in a process of its own is cut off from it too.
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
"""What is special about a world; from `down` on, about its engine, while a client is open.

raises: calls of the enforcement point raise, or its process ends in them; beside: somebody else's handler is registered
beside ours and lets all pass; down: it hangs up; slow: for 10 s; garbage: half an ALLOW; stale: of an older release.
"""


class StandInEngine(ThreadingHTTPServer):
    """Decides by the baseline, as an OPA over HTTP at `url`. `asked` is set by a question since the last `become`."""

    setting: Setting = "plain"
    request_queue_size = 64  # With the default, 5, calls side by side lose connections and time out.

    def __init__(self, manifests: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Question)
        self.baseline = EmbeddedEngine.baseline(manifests=manifests)
        self.asked, self.mended = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def become(self, setting: Setting) -> None:
        """Have a fault from now on, or none any longer (`plain`)."""
        self.setting = setting
        self.asked.clear()
        (self.mended.set if setting == "plain" else self.mended.clear)()


class _Question(BaseHTTPRequestHandler):
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
        with suppress(OSError):  # whoever asked may have given up
            if setting != "down":
                self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    def log_message(self, *_: object) -> None:
        pass


def run_body(record: Path, tool: str, arguments: Any) -> str:
    """Be the body of a tool: note what it got, and return a text; RuntimeError: the tool is `post_note`."""
    with record.open("ab", buffering=0) as file:  # one write, so that processes do not mix theirs
        file.write(orjson.dumps([tool, arguments]) + b"\n")
    if tool == "post_note":
        raise RuntimeError("the note is lost")
    return f"{tool} got {orjson.dumps(arguments).decode()}"


class World:
    """A policy in files: `folder` has `pdp.yaml` and all that it names, tools spelt as the target says.

    `session`: the caller's; `approver`: claims of who may approve; `record`: the file of what tools got.
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
        """Return what the bodies got until now: tool and arguments."""
        return [tuple(orjson.loads(line)) for line in self.record.read_bytes().splitlines()]
