"""Remote calls between real processes, killed at any moment: what was approved runs once, and does run."""

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

HELD = 0.05  # seconds after which a try goes on with what a killed process has left
_STORES = str(Path("pdp", "stores", "sql"))

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.flow.remote.test_remote_processes"])


def _begin_and_finish(manifest: Path, url: str, name: str, folder: Path, dies_at: int | None) -> None:
    """Do what an enforcement point does with a call, and die at that step of a store; None: write how many there are.

    That the tool runs is a line in the file `name`.
    """
    be_patient()
    calls.HELD = HELD  # type: ignore[misc]
    steps = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event in {"call", "return"} and _STORES in frame.f_code.co_filename
        if steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as owned:
        pep = opened(manifest, url, owned)
        # What is done once in a process takes many steps.
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


def test_a_call_whose_process_is_killed_goes_on_and_runs_once(
    url: str, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "HELD", HELD)
    monkeypatch.setattr(reserve, "PATIENCE", 0)
    chance, codes = random.Random(15), Counter[int | None]()  # noqa: S311 - for a test to be repeated
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
            # Whoever tries again knows whether the tool was started.
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
        # A process that is killed between the event and its last step leaves one that is written again.
        assert set(results) == {"succeeded"}
        assert results["succeeded"] >= 2 * (rounds + 1)


@pytest.mark.parametrize("one_id", [True, False])
def test_of_many_processes_one_runs_what_was_approved(
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
