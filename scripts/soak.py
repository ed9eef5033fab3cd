"""Put load on two services while services, OPA and PostgreSQL are killed at random: `scripts/soak [--seconds N]`.

Two service processes, each with its own OPA, share one PostgreSQL. Agents propose wires and run the allowed ones.
People approve the pending ones. Every few seconds the script kills one program with SIGKILL and starts it again; it
waits until all are ready before it kills the next one. At the end, these conditions must be true:

- no wire ran twice, and each wire that ran has a recorded outcome
- no approval was used twice
- the chain of events is complete
- every answer was a decision, or an error instead of one
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from tests.support import ROOT, payments, postgres

_PDP: Final = str(Path(sys.executable).with_name("pdp"))
_AGENTS: Final = 6
_START_SECONDS: Final = 120
_GRACE_SECONDS: Final = 90  # The time for unfinished calls when the load ends.
_CLAIMS: Final = {
    "sub": "officer-123",
    "emts": {"payments.lookup": True, "payments.validate": True, "payments.wire.initiate": True},
    "limits": {"wire.auto_approved": 25000},
}
_OK: Final = 200
_WITH_APPROVAL: Final = 47_500
_REPEATED: Final = 0.3  # The keys of the wires.
_ANSWERS: Final = (_OK, 408, 409, 429, 503)  # 409: the rules of approvals reject it, or the id belongs to another call.


class Postgres:
    """A PostgreSQL server that can be killed and restarted with its data."""

    def __init__(self, owned: ExitStack) -> None:
        self._home = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="pdp-soak-", dir="/tmp")))
        self._programs = postgres.programs(self._home)
        self._as = postgres.unprivileged(self._home)
        self._data = self._home / "data"
        subprocess.run(
            [self._programs / "initdb", "-D", self._data, "-U", "pdp", "-A", "trust", "-E", "UTF8", "--locale=C"],
            check=True, cwd=self._home, capture_output=True, **self._as,
        )  # fmt: skip
        self.url = f"postgresql+psycopg://pdp@/postgres?host={self._home}"
        self.start()
        owned.callback(self.kill)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self._data, "-k", self._home, "-c", "listen_addresses=",
             "-c", "max_connections=100"],
            cwd=self._home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **self._as,
        )  # fmt: skip
        engine, end = create_engine(self.url), time.monotonic() + _START_SECONDS
        while True:
            try:
                engine.connect().close()
                break
            except OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        engine.dispose()

    def kill(self) -> None:
        """Kill the server and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Service:
    """One service process with its OPA and its own port."""

    def __init__(self, name: str, store: str, folder: Path, owned: ExitStack) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self._config = folder / f"{name}.yaml"
        tenant = {"project": str(payments.EXAMPLE / "pdp.yaml"), "store": store, "engine": "sidecar"}
        limits = {"requests_per_second": 100_000, "burst": 100_000}
        settings = {"port": self.port, "tenants": {"default": tenant}, "limits": limits, "log_level": "warning"}
        self._config.write_text(json.dumps(settings))
        self.start()
        owned.callback(self.kill)

    def start(self) -> None:
        """Start the service, without waiting until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [_PDP, "serve", "--config", str(self._config)], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the service and its OPA, which is in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_opa(self) -> bool:
        """Kill only the service's OPA; return False if it has none now."""
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                head, _, rest = status.read_text().rpartition(") ")
                if head.partition("(")[2].startswith("opa") and int(rest.split()[2]) == self._process.pid:
                    os.kill(int(status.parent.name), signal.SIGKILL)
                    return True
        return False

    def wait(self) -> None:
        """Wait until the service is ready."""
        end = time.monotonic() + _START_SECONDS
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == _OK:
                    return
            if time.monotonic() > end:
                raise RuntimeError(f"the service is not ready: {self.log.read_text()[-4000:]}")
            time.sleep(0.2)


class Soak:
    """The state of one run: the calls, the executions and the violations."""

    def __init__(self, seconds: float, seed: int, owned: ExitStack) -> None:
        self.folder = folder = Path(owned.enter_context(tempfile.TemporaryDirectory()))
        self.random = random.Random(seed)  # noqa: S311 - not a secret
        self.database = Postgres(owned)
        subprocess.run([_PDP, "db", "upgrade", self.database.url], check=True, capture_output=True)
        self.services = [Service(name, self.database.url, folder, owned) for name in ("first", "second")]
        self.tokens = {
            "agent": self._token("agent", ["propose", "decide", "assert"], {}),
            "approver": self._token("approver", ["approve"], {"sub": "controller-7", "roles": ["payments.approver"]}),
        }
        for service in self.services:
            service.wait()
        self.end = time.monotonic() + seconds
        self.last = self.end + _START_SECONDS + _GRACE_SECONDS
        self.lock = threading.Lock()
        self.executed: Counter[str] = Counter()
        self.reported: set[str] = set()
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()

    def _token(self, name: str, scopes: list[str], claims: dict[str, Any]) -> str:
        options = [part for scope in scopes for part in ("--scope", scope)]
        if claims:
            session = self.folder / f"{name}.json"
            session.write_text(json.dumps({"claims": claims}))
            options += ["--session", str(session)]
        made = subprocess.run(
            [_PDP, "token", "create", name, "--store", self.database.url, *options, "--json"],
            check=True, capture_output=True,
        )  # fmt: skip
        token: str = json.loads(made.stdout)["token"]
        return token

    def wrong(self, what: str) -> None:
        """Record a violation."""
        with self.lock:
            self.faults.append(what)

    def count(self, what: str) -> None:
        """Count an event."""
        with self.lock:
            self.counts[what] += 1

    def ask(self, who: str, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer from one of the services; None if there was no answer, or an error."""
        service = self.random.choice(self.services)
        try:
            answer = httpx.request(
                method,
                service.url + path,
                json=body,
                timeout=20,
                headers={"Authorization": f"Bearer {self.tokens[who]}"},
            )
        except httpx.HTTPError as error:
            self.count(f"no answer: {type(error).__name__}")
            return None
        self.count(f"answer {answer.status_code}")
        if answer.status_code not in _ANSWERS:
            self.wrong(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.status_code in (200, 409) else None

    def persist(self, who: str, method: str, path: str, body: Any = None) -> Any:
        """Repeat a request until there is an answer, or the run has ended."""
        while time.monotonic() < self.last:
            answer = self.ask(who, method, path, body)
            if answer is not None:
                return answer
            time.sleep(0.2)
        self.wrong(f"{method} {path}: never answered")
        return None

    def propose(self, key: str, amount: int, call_id: str) -> Any:
        """Propose a wire, and run it if the service says so; return the last answer."""
        arguments = {**payments.ARGUMENTS, "amount": amount, "reference": key}
        session = {
            "claims": _CLAIMS, "idempotency_key": key, "purpose": None,
            "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"},
        }  # fmt: skip
        proposal = {"tool": "initiate_wire", "arguments": arguments}
        answer = self.persist(
            "agent", "POST", "/v1/proposals", {"id": f"{call_id:-<32}", "proposal": proposal, "session": session}
        )
        if answer is None or not answer.get("begun"):
            return answer
        if answer["arguments"] != arguments:
            self.wrong(f"{key}: other arguments were begun")
        with self.lock:
            self.executed[key] += 1
        execution = {"started": True, "attempts": 1, "result": {"wire_id": f"wire-{key}", **arguments}}
        closed = self.persist("agent", "POST", f"/v1/proposals/{answer['id']}/result", {"execution": execution})
        if closed is not None and closed.get("verdict") == "ALLOW":
            with self.lock:
                self.reported.add(key)
        else:
            self.wrong(f"{key}: its outcome was not taken: {closed}")
        return answer

    def agent(self, number: int) -> None:
        """Propose wires until the time is over: small ones, ones that need approval, and repeated ones."""
        choose = random.Random(number)  # noqa: S311 - not a secret
        serial = 0
        while time.monotonic() < self.end:
            serial += 1
            key, amount = f"k-{number}-{serial}", choose.choice((20_000, 20_000, _WITH_APPROVAL))
            answer = self.propose(key, amount, f"call-{key}-0")
            tries = 0
            while answer is not None and answer.get("verdict") == "STEP_UP" and time.monotonic() < self.last:
                tries += 1
                approval = answer["approval"]["id"]
                self.ask("agent", "GET", f"/v1/approvals/{approval}?wait=2s")
                # These arguments differ from the approved ones, so the call needs another approval.
                if tries == 1 + serial % 2:
                    other = self.propose(key, amount + 1, f"call-{key}-other")
                    if other is not None and other.get("begun"):
                        self.wrong(f"{key}: another amount than the approved one was begun")
                answer = self.propose(key, amount, f"call-{key}-{tries}")
            if answer is not None and choose.random() < _REPEATED:
                again = self.propose(key, amount, f"call-{key}-again")
                if again is not None and again.get("begun") and answer.get("begun"):
                    self.wrong(f"{key}: begun a second time")
            self.count("wires")

    def approver(self) -> None:
        """Approve the pending calls."""
        while time.monotonic() < self.last and not self.over.is_set():
            listed = self.ask("approver", "GET", "/v1/approvals?state=pending&limit=50")
            for approval in (listed or {}).get("approvals", ()):
                amount = approval["request"]["context"]["arguments"]["amount"]
                step = "grant" if amount == _WITH_APPROVAL else "deny"
                self.ask(
                    "approver",
                    "POST",
                    f"/v1/approvals/{approval['id']}/{step}",
                    {} if step == "grant" else {"reason": "not asked for"},
                )
            self.over.wait(0.5)

    def killer(self) -> None:
        """Kill a program every few seconds, and start it again."""
        while time.monotonic() < self.end:
            time.sleep(self.random.uniform(1.5, 4))
            victim = self.random.choice(("service", "service", "opa", "opa", "database"))
            service = self.random.choice(self.services)
            self.count(f"killed {victim}")
            if victim == "opa":
                service.kill_opa()
            elif victim == "service":
                service.kill()
                time.sleep(self.random.uniform(0, 1))
                service.start()
            else:
                self.database.kill()
                time.sleep(self.random.uniform(0, 2))
                self.database.start()
            # A slow machine may take long to restart a service; only a service that never comes back is a fault.
            for each in self.services:
                try:
                    each.wait()
                except RuntimeError as error:
                    self.wrong(str(error))
        self.last = time.monotonic() + _GRACE_SECONDS

    def run(self) -> None:
        """Run everything, then check the stored data."""
        self.over = threading.Event()
        agents = [threading.Thread(target=self.agent, args=(number,)) for number in range(_AGENTS)]
        others = [threading.Thread(target=self.approver), threading.Thread(target=self.killer)]
        for thread in (*agents, *others):
            thread.start()
        for thread in agents:
            thread.join()
        self.over.set()
        for thread in others:
            thread.join()
        self.check()

    def check(self) -> None:
        """Compare the executions with the recorded outcomes."""
        for key, times in self.executed.items():
            if times != 1:
                self.wrong(f"{key}: ran {times} times")
        verified = subprocess.run(
            [_PDP, "audit", "verify", self.database.url], check=False, capture_output=True, text=True
        )
        if verified.returncode != 0:
            self.wrong(f"the chain does not verify: {verified.stdout} {verified.stderr}")
        shown = subprocess.run(
            [_PDP, "audit", "show", self.database.url, "--json"], check=True, capture_output=True, text=True
        )
        events = [json.loads(line) for line in shown.stdout.splitlines()]
        # If a process is killed between an event and its last step, the event is written a second time.
        succeeded = {
            (event["idempotency_key"], event["decision_id"])
            for event in events
            if event["type"] == "tool.initiate_wire.result"
            and event["outcome"] == "succeeded"
            and not event["replayed"]
        }
        recorded = Counter(key for key, _ in succeeded)
        for key in self.executed:
            if recorded[key] != 1:
                self.wrong(f"{key}: ran, and {recorded[key]} outcomes are recorded")
        # A service that is killed between the event of a use and its transaction leaves an event of a use that was not
        # stored. So the wires that ran are counted, and not these events.
        approvals = {
            event["decision_id"]: event["approval_id"]
            for event in events
            if event["type"] == "tool.initiate_wire.dispatch" and event["approval_id"]
        }
        used = Counter(approvals[decision] for _, decision in succeeded if decision in approvals)
        for approval, times in used.items():
            if times > 1:
                self.wrong(f"approval {approval}: used {times} times")
        self.counts["approvals used"] = len(used)
        self.counts["executed"] = len(self.executed)
        self.counts["events"] = len(events)


def errors_in(log: Path) -> Counter[str]:
    """Return the last line of each traceback in a log."""
    found = Counter[str]()
    for line in log.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            error = json.loads(line).get("error", "").strip().splitlines()
            found.update(f"traceback: {last[:150]}" for last in error[-1:])
    return found


def main() -> int:
    """Run for some time and print a summary; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(description="Mixed load on the service while its parts are killed at random.")
    parser.add_argument("--seconds", type=float, default=600, help="how long the load lasts (600)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when")
    stated = parser.parse_args()
    with ExitStack() as owned:
        soak = Soak(stated.seconds, stated.seed, owned)
        soak.run()
        for service in soak.services:
            soak.counts.update(errors_in(service.log))
    for what, count in sorted(soak.counts.items()):
        print(f"{count:8} {what}")
    for fault in soak.faults[:50]:
        print(f"WRONG: {fault}")
    print("all is as it should be" if not soak.faults else f"{len(soak.faults)} faults")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
