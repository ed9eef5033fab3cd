"""What surrounds an enforcement point in the suite: policy files, tools that say what they got, an engine with faults.

The engine is a stand-in for OPA on 127.0.0.1, so that whoever is tried in a process of its own is cut off from it too.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import orjson

from pdp.approvals.approvals import Approvals
from pdp.documents import read_document
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.manifest.load import load_effective
from pdp.pep import Pep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LATE: Final = 10.0
"""Seconds after which a slow engine answers after all."""


Setting = Literal["plain", "raises", "beside", "down", "slow", "garbage", "stale"]
"""What is special about a world; from `down` on, about its engine, which changes while a client is open.

raises: each call of the enforcement point raises, or its process ends in it; beside: a handler of somebody else that
lets everything pass is registered beside ours; down: the engine hangs up; slow: see `LATE`; garbage: it answers half an
ALLOW; stale: an older release decides.
"""


class StandInEngine(ThreadingHTTPServer):
    """Decides by the baseline, as an OPA over HTTP at `url`. `asked` is set by a question since the last `become`."""

    daemon_threads = True

    def __init__(self, manifests: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Question)
        self._baseline = EmbeddedEngine.baseline(manifests=manifests)
        self.asked, self._mended = threading.Event(), threading.Event()
        self._setting: Setting = "plain"
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def become(self, setting: Setting) -> None:
        """Have a fault from now on, or none any longer (`PLAIN`)."""
        self._setting = setting
        self.asked.clear()
        (self._mended.set if setting == "plain" else self._mended.clear)()

    def answer(self, document: str, body: bytes) -> bytes:
        """Return the whole HTTP response to a question; without a byte, it hangs up."""
        setting = self._setting
        self.asked.set()
        if setting == "slow":
            self._mended.wait(LATE)
        decided = orjson.loads(self._baseline.evaluate(orjson.dumps(orjson.loads(body)["input"]), document))
        if decided.get("bundle"):
            decided["bundle"]["release"] = 1 if setting == "stale" else 2
        text = b'{"result":{"verdict":"ALLOW"' if setting == "garbage" else orjson.dumps({"result": decided})
        head = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)
        return b"" if setting == "down" else head + text


class _Question(BaseHTTPRequestHandler):
    server: StandInEngine

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with suppress(OSError):  # whoever asked may have given up
            self.wfile.write(self.server.answer(self.path.partition("?")[0].removeprefix("/v1/data/"), body))

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

    session: Final = {"claims": {"sub": "caller-1", "emts": {"kit.use": True}}, "run_id": "kit"}
    approver: Final = {"sub": "person-2", "roles": ["kit.approver"]}

    def __init__(self, folder: Path, setting: Setting = "plain", spelling: str = "{}") -> None:
        folder.mkdir(mode=0o700, parents=True)
        self.folder, self.setting, self.record = folder, setting, folder / "ran.jsonl"
        manifest = read_document(Path(__file__).with_name("manifest.yaml")).value
        for tool in manifest["tools"]:
            tool["name"] = spelling.format(tool["name"])
        self._write("manifest.yaml", manifest)
        effective = load_effective(folder / "manifest.yaml", None)
        self.engine = StandInEngine({effective.digest: effective.document})
        project = {"manifest": "manifest.yaml", "session": "session.yaml", "store": "sqlite:///store.db"}
        self._write("pdp.yaml", {**project, "engine": "sidecar", "opa_url": self.engine.url})
        self._write("session.yaml", self.session)

    def close(self) -> None:
        """Stop the engine."""
        self.engine.become("plain")
        self.engine.shutdown()
        self.engine.server_close()

    def ran(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what the bodies got until now: tool and arguments."""
        lines = self.record.read_bytes().splitlines() if self.record.exists() else []
        return [(tool, arguments) for tool, arguments in map(orjson.loads, lines)]

    @contextmanager
    def pep(self, **options: Any) -> Iterator[Pep]:
        """Open an enforcement point of this process for the policy; `options` as of `Pep`."""
        kind = _RaisingPep if self.setting == "raises" else Pep
        with SidecarEngine(self.engine.url, timeout=1, connect_timeout=1) as engine:
            options = {"approvals": Approvals(), **options}
            with kind.from_project(self.folder / "pdp.yaml", engine=engine, **options) as pep:
                yield pep

    def _write(self, name: str, content: Any) -> None:
        (self.folder / name).write_bytes(orjson.dumps(content))


class _RaisingPep(Pep):
    def call(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a fault of the enforcement point")

    acall = abegin = decide = adecide = visible_tools = avisible_tools = call
