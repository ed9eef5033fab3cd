"""What surrounds an enforcement point in the suite: policy files, tools that say what they got, an engine with faults.

The engine is a stand-in for OPA on 127.0.0.1, so that whoever is tried in a process of its own is cut off from it too.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from pdp.documents import read_document
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.manifest.load import load_effective

if TYPE_CHECKING:
    from collections.abc import Mapping

_LATE: Final = 10.0

Setting = Literal["plain", "raises", "beside", "down", "slow", "garbage", "stale"]
"""What is special about a world; from `down` on, about its engine, which changes while a client is open.

raises: each call of the enforcement point raises, or its process ends in it; beside: a handler of somebody else that
lets everything pass is registered beside ours; down: the engine hangs up; slow: it answers after 10 s; garbage: half
an ALLOW; stale: an older release decides.
"""


class StandInEngine(ThreadingHTTPServer):
    """Decides by the baseline, as an OPA over HTTP at `url`. `asked` is set by a question since the last `become`."""

    daemon_threads = True
    setting: Setting = "plain"

    def __init__(self, manifests: Mapping[str, Any]) -> None:
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
            engine.mended.wait(_LATE)
        decided = orjson.loads(engine.baseline.evaluate(orjson.dumps(asked), document))
        if "bundle" in decided:
            decided["bundle"]["release"] = 1 if setting == "stale" else 2
        text = b'{"result":{"verdict":"ALLOW"' if setting == "garbage" else orjson.dumps({"result": decided})
        with suppress(OSError):  # whoever asked may have given up
            if setting != "down":
                self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    def log_message(self, *_: object) -> None:
        pass


def run_body(record: Path, tool: str, arguments: Mapping[str, Any]) -> str:
    """Be the body of a tool: note what it got, and return a text; RuntimeError: the tool is `post_note`."""
    with record.open("ab", buffering=0) as file:  # one write, so that processes do not mix theirs
        file.write(orjson.dumps([tool, arguments]) + b"\n")
    if tool == "post_note":
        raise RuntimeError("the note is lost")
    return f"{tool} got {orjson.dumps(arguments).decode()}"


class World:
    """A policy in files: `folder` has `pdp.yaml` and all that it names, tools spelt as the target says.

    `session`: the caller's; `approver`: claims of who may approve; `engine`: who decides; `record`: the file of what
    tools got, for `run_body` in another process.
    """

    session: Final[Any] = {
        "claims": {"sub": "person-1", "emts": {"kit.use": True}, "act": {"sub": "agent:kit", "scopes": ["kit.use"]}}
    }
    approver: Final = {"sub": "person-2", "roles": ["kit.approver"]}

    def __init__(self, folder: Path, setting: Setting = "plain", spelling: str = "{}") -> None:
        folder.mkdir(mode=0o700, parents=True)
        self.folder, self.setting, self.record = folder, setting, folder / "ran.jsonl"
        manifest = read_document(Path(__file__).with_name("manifest.yaml")).value
        for tool in manifest["tools"]:
            tool["name"] = spelling.format(tool["name"])
        (folder / "manifest.yaml").write_bytes(orjson.dumps(manifest))
        (folder / "session.yaml").write_bytes(orjson.dumps(self.session))
        effective = load_effective(folder / "manifest.yaml", None)
        self.engine = StandInEngine({effective.digest: effective.document})
        project = {"manifest": "manifest.yaml", "session": "session.yaml", "store": "sqlite:///store.db"}
        project |= {"engine": "sidecar", "opa_url": self.engine.url}
        (folder / "pdp.yaml").write_bytes(orjson.dumps(project))

    def close(self) -> None:
        """Stop the engine."""
        self.engine.become("plain")
        self.engine.shutdown()
        self.engine.server_close()

    def ran(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what the bodies got until now: tool and arguments."""
        lines = self.record.read_bytes().splitlines() if self.record.exists() else []
        return [(tool, arguments) for tool, arguments in map(orjson.loads, lines)]
