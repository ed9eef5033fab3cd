"""A process is killed at any step of a remote call, but the approved call runs exactly once."""

import json
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pytest

from pdp.flow import reserve
from pdp.flow.remote import calls
from tests.flow.remote.letters import PAGES, SENT, approved, begin, call, finish, letter, opened, session
from tests.flow.remote.test_remote import spent, stream
from tests.support import PATIENCE, be_patient

pytestmark = pytest.mark.process

HELD = 0.05  # Seconds until another process may continue the call of a killed process.
_STORES = str(Path("pdp", "stores", "sql"))

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.flow.remote.test_remote_processes"])


def _begin_and_finish(manifest: Path, url: str, name: str, folder: Path, dies_at: int | None) -> None:
    """Begin and finish a call. The process dies at function call number `dies_at` in the stores.

    If `dies_at` is None, the process survives and writes its number of function calls to the file `steps`.
    Each run of the tool appends a line to the file `name`.
    """
    be_patient()
    calls.OWNED_SECONDS = HELD  # type: ignore[misc]
    steps = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event in {"call", "return"} and _STORES in frame.f_code.co_filename
        if steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as owned:
        pep = opened(manifest, url, owned)
        # The first call of a process does one-time work, so it is not counted.
        begin(pep, call(f"first of {name}"), letter("read_letter"), session())
        sys.setprofile(count)
        begun = begin(pep, call(name), letter(), session(name))
        if begun["begun"]:
            _run(folder / name)
        finish(pep, call(name), SENT)
        sys.setprofile(None)
    if dies_at is None:
        (folder / "steps").write_text(str(steps))


def _run(effect: Path) -> None:
    with effect.open("ab", buffering=0) as file:
        file.write(b"sent\n")


def _begin(manifest: Path, url: str, name: str, key: str, answers: Path) -> None:
    be_patient()
    reserve.PATIENCE = 0  # type: ignore[misc]
    with ExitStack() as owned:
        answer = begin(opened(manifest, url, owned), call(name), letter(), session(key))
    with answers.open("ab", buffering=0) as file:
        file.write(json.dumps(answer).encode() + b"\n")


def test_call_runs_once_if_its_process_is_killed_and_another_process_continues_it(
    url: str, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "OWNED_SECONDS", HELD)
    monkeypatch.setattr(reserve, "PATIENCE", 0)
    chance, codes = random.Random(15), Counter[int | None]()  # noqa: S311 - a repeatable test
    with ExitStack() as owned:
        pep = opened(manifest, url, owned)
        most, rounds = 0, 6
        for number in range(rounds + 1):
            name = f"call {number}"
            dies_at = None if number == 0 else chance.randrange(most * (number - 1) // rounds, most * number // rounds)
            approved(pep, name, name)
            child = _context.Process(target=_begin_and_finish, args=(manifest, url, name, tmp_path, dies_at))
            child.start()
            child.join(PATIENCE)
            codes[child.exitcode] += 1
            if number == 0:
                most = int((tmp_path / "steps").read_text())
            # The tool may have run before the process was killed. A real caller knows whether the tool ran, and the
            # test reads a file.
            effect = tmp_path / name
            if begin(pep, call(name), letter(), session(name))["begun"] and not effect.exists():
                _run(effect)
            done = finish(pep, call(name), SENT)
            assert (done["result"], done["action"]["state"]) == (SENT.result, "committed"), dies_at
            assert begin(pep, call(name), letter(), session(name)) == done
            assert (effect.read_text(), spent(pep)) == ("sent\n", PAGES * (number + 1)), dies_at
            replay = begin(pep, call(f"other than {name}"), letter(), session(name))
            assert (replay["begun"], replay["result"]) == (False, SENT.result)
        assert codes == {0: 1, -signal.SIGKILL: rounds}
        results = Counter(outcome for kind, outcome in stream(pep) if kind == "tool.send_letter.result")
        # If a process was killed after it recorded the result but before its last step, another process records the
        # result again.
        assert set(results) == {"succeeded"}
        assert results["succeeded"] >= 2 * (rounds + 1)


@pytest.mark.parametrize("one_id", [True, False])
def test_only_one_of_many_processes_runs_an_approved_call(
    url: str, manifest: Path, tmp_path: Path, *, one_id: bool
) -> None:
    answers = tmp_path / "answers"
    with ExitStack() as owned:
        pep = opened(manifest, url, owned)
        approved(pep, "first")
        started = [
            _context.Process(target=_begin, args=(manifest, url, "one" if one_id else f"call {n}", "key-1", answers))
            for n in range(4)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(PATIENCE)
        assert [process.exitcode for process in started] == [0] * 4
        told = [json.loads(line) for line in answers.read_text().splitlines()]
        if one_id:
            assert (told, told[0]["begun"]) == (told[:1] * 4, True)
        assert sum(answer["begun"] for answer in told) == (4 if one_id else 1)
        assert spent(pep) == PAGES
        consumed = [outcome for kind, outcome in stream(pep) if kind == "approval.consumed"]
        assert consumed.count("consumed") - consumed.count("failed") == 1
