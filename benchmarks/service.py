"""Measure the speed of the decision service as ratios within one run: `python -m benchmarks.service`, or with
`--quick`.

The service is compared with a FastAPI endpoint that returns a constant, on the same uvicorn with the same options. Both
run as processes on this machine. Requests alternate between them, over connections that stay open. The service writes
its audit stream to SQLite. The request is the payments example's wire of 20,000, as an AuthZEN evaluation.

`..._cpu` is the CPU time of a server's process for one answer, in microseconds. Other programs on the machine affect it
least, so the goal for one evaluation uses it. A batch has 100 wires, all allowed. A batch and one evaluation are
compared
by the time that a single caller waits.

Four workers and one worker answer batches, because these cost the client least: 0.01 cores. The best of three rounds
counts. `..._cores` is the number of cores that the servers used, and `others` the number that other programs used. If
`others` is above 0.1, the ratio is too low. One worker uses 1.3 cores, as WebAssembly runs beside the interpreter.

`start` is the CPU time of the slowest of four workers, from its start until it is idle.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
from fastapi import FastAPI

from pdp import Pep
from tests.support import ROOT, payments

_SERVICE_FILLS: Final = ("approval", "call_digest", "request_id", "time")
_BATCH: Final = 100
_CALLERS: Final = 16
_WORKERS: Final = 4
_ROUNDS: Final = 20
_START_SECONDS: Final = 60
_KEPT_SECONDS: Final = 2.0  # The server closes a connection that is idle for five seconds.

app = FastAPI()


@app.post("/constant")
async def constant() -> dict[str, bool]:
    """Return a constant."""
    return {"decision": True}


class Connection:
    """A connection that repeats one request. It is opened again after a pause."""

    def __init__(self, port: int, path: str, body: bytes, token: str) -> None:
        self._port = port
        self._connect()
        self._message = (
            f"POST {path} HTTP/1.1\r\nHost: service\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()

    def fileno(self) -> int:
        """Return the socket, for a selector."""
        return self._socket.fileno()

    def send(self) -> None:
        """Send the request."""
        self._socket.sendall(self._message)

    def receive(self) -> bytes:
        """Return the body of the answer, which has to be 200."""
        data = self._socket.recv(262144)
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, content = data.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise ConnectionError(data[:600].decode())
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        while len(content) < length:
            content += self._more()
        return content

    def _more(self) -> bytes:
        more = self._socket.recv(262144)
        if not more:
            raise ConnectionError("the server has closed the connection")
        return more

    def ask(self) -> bytes:
        """Send the request and return the body of the answer."""
        if time.monotonic() - self._used > _KEPT_SECONDS:
            self._socket.close()
            self._connect()
        self.send()
        answer = self.receive()
        self._used = time.monotonic()
        return answer


class Server:
    """A server process and its request."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], path: str, body: bytes, token: str = "") -> None:
        self.process = process
        self._request = (port, path, body, token)

    def connection(self, path: str | None = None, body: bytes | None = None) -> Connection:
        """Return a connection that sends the server's request, or another one."""
        port, own_path, own_body, token = self._request
        return Connection(port, path or own_path, own_body if body is None else body, token)

    def cpu(self) -> float:
        """Return the CPU seconds of the process and its workers."""
        return _cpu(self.process.pid) + sum(self.workers())

    def workers(self) -> list[float]:
        """Return the CPU seconds of each process that this one has started."""
        pid = self.process.pid
        return [_cpu(int(child)) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def memory(self) -> int:
        """Return the memory that the process holds, in KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine() -> float:
    """Return the CPU seconds of all programs on the machine."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def medians(connections: dict[str, Connection], calls: int) -> dict[str, float]:
    """Return the median time of each call in microseconds; the calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in connections}
    for connection in connections.values():
        for _ in range(50):
            connection.ask()
    for _ in range(_ROUNDS):
        for name, connection in connections.items():
            connection.ask()
            for _ in range(max(1, calls // _ROUNDS)):
                start = time.perf_counter()
                connection.ask()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e6 for name, taken in times.items()}


def throughput(connections: list[Connection], seconds: float) -> float:
    """Return the number of answers a second when each connection repeats its request immediately."""
    answers, end = 0, time.perf_counter() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, connection)
            connection.send()
        open_ = len(connections)
        while open_:
            for key, _ in selector.select():
                key.data.receive()
                answers += 1
                if time.perf_counter() < end:
                    key.data.send()
                else:
                    open_ -= 1
    return answers / (time.perf_counter() - end + seconds)


def evaluation() -> dict[str, Any]:
    """Return the example's wire as an AuthZEN request, without the fields that the service adds."""
    with payments.engine() as engine:
        asked = Pep(payments.effective(), engine).decide(payments.wire(amount=20000), payments.session()).request
    if asked is None:
        raise RuntimeError("the example's wire is not decided")
    for name in _SERVICE_FILLS:
        del asked["context"][name]
    return asked


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _process(
    command: list[str], port: int, log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"a server does not start: {log.read_text()}") from None
                time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def constant_server(folder: Path) -> Iterator[Server]:
    """Run the endpoint that is compared with the service."""
    port = _free_port()
    command = [
        sys.executable, "-m", "uvicorn", "benchmarks.service:app", "--port", str(port), "--log-level", "error",
        "--no-access-log", "--http", "httptools", "--loop", "uvloop",
    ]  # fmt: skip
    with _process(command, port, folder / "constant.log", dict(os.environ)) as process:
        yield Server(port, process, "/constant", b"{}")


@contextmanager
def service(folder: Path, *, workers: int = 1) -> Iterator[Server]:
    """Run the service on a new SQLite file."""
    port, store = _free_port(), f"sqlite:///{folder / f'service-{workers}.db'}"
    pdp = str(Path(sys.executable).with_name("pdp"))
    subprocess.run([pdp, "db", "upgrade", store], check=True, capture_output=True)
    made = subprocess.run(
        [pdp, "token", "create", "benchmark", "--store", store, "--scope", "decide", "--scope", "assert", "--json"],
        check=True, capture_output=True,
    )  # fmt: skip
    token = json.loads(made.stdout)["token"]
    config = folder / f"service-{workers}.yaml"
    tenant = {"project": str(payments.EXAMPLE / "pdp.yaml"), "store": store}
    limits = {"requests_per_second": 1_000_000, "burst": 1_000_000}
    config.write_text(json.dumps({"port": port, "workers": workers, "tenants": {"default": tenant}, "limits": limits,
                                  "log_level": "warning"}))  # fmt: skip
    with _process([pdp, "serve", "--config", str(config)], port, folder / "service.log", dict(os.environ)) as process:
        server = Server(port, process, "/access/v1/evaluation", orjson.dumps(evaluation()), token)
        batch = orjson.loads(server.connection("/access/v1/evaluations", _batch()).ask())["evaluations"]
        if [orjson.loads(server.connection().ask()), *batch] != [{"decision": True}] * (1 + _BATCH):
            raise RuntimeError("the service does not allow the example's wires, or adds to its answer")
        yield server


def _batch() -> bytes:
    one = evaluation()
    # A hundred different wires, all of them allowed.
    wires = [
        {"resource": one["resource"] | {"id": payee},
         "context": one["context"] | {
             "arguments": one["context"]["arguments"] | {"beneficiary_id": payee}, "looked_up_beneficiary": payee,
         }}
        for payee in (f"bene-{number}" for number in range(_BATCH))
    ]  # fmt: skip
    return orjson.dumps({"subject": one["subject"], "action": one["action"], "evaluations": wires})


def measured(calls: int, seconds: float, decisions: int) -> dict[str, float]:
    """Return all figures of one run."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as running:
        folder = Path(place)
        alone = running.enter_context(constant_server(folder))
        one = running.enter_context(service(folder))
        connections = {"constant": alone.connection(), "evaluation": one.connection()}
        figures = medians(connections, calls)
        batches = {"one": one.connection(), "batch": one.connection("/access/v1/evaluations", _batch())}
        turns = medians(batches, max(_ROUNDS, calls // 20))
        figures["batch"], figures["one"] = turns["batch"], turns["one"]
        servers = {"constant": alone, "evaluation": one}
        rates: dict[str, list[float]] = {name: [] for name in servers}
        spent: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(4):
            for name, server in servers.items():
                asking, before = [server.connection() for _ in range(_CALLERS)], server.cpu()
                rates[name].append(throughput(asking, seconds))
                spent[name].append((server.cpu() - before) / (rates[name][-1] * seconds) * 1e6)
        for name in servers:
            figures[f"{name}_rate"] = statistics.median(rates[name])
            figures[f"{name}_cpu"] = statistics.median(spent[name])
        batching = one.connection("/access/v1/evaluations", _batch())
        for _ in range(decisions // 10 // _BATCH):
            batching.ask()
        held = one.memory()
        for _ in range(decisions // _BATCH):
            batching.ask()
        figures["memory_kib"], figures["grown_kib"] = held, one.memory() - held
    return figures | _of_workers(seconds)


def _of_workers(seconds: float) -> dict[str, float]:
    """Return the decisions a second of one worker and of four, and the CPU time that a worker needs to start."""
    batch, found = _batch(), {"single_rate": 0.0, "several_rate": 0.0}
    with tempfile.TemporaryDirectory() as place, ExitStack() as running:
        single = running.enter_context(service(Path(place)))
        several = running.enter_context(service(Path(place), workers=_WORKERS))
        start, before = max(several.workers()), 0.0
        while start > before or len(several.workers()) < _WORKERS:
            time.sleep(1)
            start, before = max(several.workers()), start
        for _ in range(3):
            for name, server in (("single", single), ("several", several)):
                asking = [server.connection("/access/v1/evaluations", batch) for _ in range(_CALLERS)]
                own, client, machine, began = server.cpu(), time.process_time(), _machine(), time.perf_counter()
                rate = throughput(asking, 2 * seconds) * _BATCH
                took = time.perf_counter() - began
                own, client = (server.cpu() - own) / took, (time.process_time() - client) / took
                others = max(0.0, (_machine() - machine) / took - own - client)
                if rate > found[f"{name}_rate"]:
                    found |= {f"{name}_rate": rate, f"{name}_cores": own, f"{name}_others": others}
    return found | {"start": start}


def main() -> int:
    """Measure, print the figures and the goals, and return 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Speed of the decision service, as ratios within one run.")
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    quick = parser.parse_args().quick
    figures = measured(400 if quick else 4000, 1 if quick else 3, 20_000 if quick else 200_000)
    goals = {
        "CPU of one evaluation, times the constant endpoint's": (
            figures["evaluation_cpu"] / figures["constant_cpu"], 2.8, True,
        ),
        "a batch of 100, times one": (figures["batch"] / figures["one"], 30, True),
        "decisions a second of 4 workers, times one worker's": (
            figures["several_rate"] / figures["single_rate"], 1.7, False,
        ),
        "seconds of CPU until a worker has started": (figures["start"], 3, True),
        "memory after all decisions, times that after a tenth": (
            1 + figures["grown_kib"] / figures["memory_kib"], 1.05, True,
        ),
    }  # fmt: skip
    for name, value in figures.items():
        print(f"{name:>20} {value:12.1f}")
    missed = 0
    for what, (value, bound, at_most) in goals.items():
        reached = value <= bound if at_most else value >= bound
        missed += not reached
        verdict, side = "reached" if reached else "MISSED", "at most" if at_most else "at least"
        print(f"{verdict:8} {value:7.2f} ({side} {bound}) {what}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
