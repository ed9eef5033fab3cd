"""The cases of cases.yaml, and the methods that run their steps."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pdp.decision import new_id
from pdp.documents import read_document
from pdp.testing.conformance.target import Observed, ToolClient
from pdp.testing.conformance.world import Setting, World

_PARALLEL_CALLS: Final = 4

CASES: Final[dict[str, Any]] = read_document(Path(__file__).with_name("cases.yaml")).value
"""The cases by name. Each has a `setting` for its test world, and `steps`: methods of `Trial` with their arguments."""


class UnsafeError(AssertionError):
    """A tool ran that must not run, or it ran with wrong arguments, or too often."""


class Trial:
    """A run of one case on one client.

    A step raises AssertionError if the case fails, and `UnsafeError` if a tool ran although no step allows this.
    """

    def __init__(self, case: str, world: World, client: ToolClient) -> None:
        self._case, self._world, self._client = case.replace(" ", "-"), world, client
        self._earlier, self._due = len(world.ran()), list[tuple[str, Any]]()

    def runs(self, tool: str, arguments: Any, got: Any = None, *, fails: bool = False, **options: Any) -> None:
        """Check that a tool runs, with the arguments `got` if corrected, and that the model sees its result."""
        seen = self._call(tool, arguments, **options)
        self._due.append((tool, got or arguments))
        self._check(
            seen.is_error == fails and (fails or f"{tool} got" in seen.message), "does not see the result", seen
        )

    def refuses(self, tool: str, arguments: Any, *, dropped: bool = False) -> Observed:
        """Check that a call does not run, and that the model sees why: as an error, unless the call is `dropped`."""
        seen = self._call(tool, arguments)
        self._check((seen.is_error or dropped) and bool(seen.message.strip()), "does not see why nothing ran", seen)
        return seen

    def replays(self, tool: str, arguments: Any, call_id: str) -> None:
        """Repeat a call with the same id. Any answer is allowed, but the tool must not run again."""
        self._check(True, "", self._call(tool, arguments, call_id))

    def is_granted(self, arguments: Any) -> None:
        """Make a call that needs approval, and approve it."""
        seen = self.refuses("pay_bill", arguments)
        self._check(seen.held is not None, "does not see which approval it waits for", seen)
        self._client.approve(seen.held or "")

    def engine_becomes(self, setting: Setting) -> None:
        """Give the engine a fault. The setting `plain` repairs the engine."""
        self._world.engine.become(setting)

    def cancels(self, tool: str, arguments: Any) -> None:
        """Cancel a call while the engine decides it."""
        self._client.cancel(tool, arguments, call_id="cancelled")

    def calls_at_once(self, bill: Any) -> None:
        """Make calls at the same time: different calls, and several copies of a call that has one approval."""
        self.is_granted(bill)
        notes = [("read_note", {"note": f"note {number}"}) for number in range(_PARALLEL_CALLS)]
        calls = [*notes, *[("pay_bill", bill)] * _PARALLEL_CALLS, ("wipe_disk", {"disk": "a"})]
        with ThreadPoolExecutor(len(calls)) as threads:
            seen = list(threads.map(self._call, *zip(*calls, strict=True), map(str, range(len(calls)))))
        self._due += [*notes, ("pay_bill", bill)]
        own = all(str(arguments["note"]) in each.message for each, (_, arguments) in zip(seen, notes, strict=False))
        denied = seen[-1].is_error and sum(each.is_error for each in seen) == _PARALLEL_CALLS
        self._check(own and denied, "sees the result of another call", seen)

    def lists(self, shown: list[str], hidden: list[str]) -> None:
        """Check that the model sees the tools in `shown`, and no tool in `hidden`."""
        listed = sorted({*shown, *hidden}.intersection(self._client.listed()))
        self._check(listed == shown, "sees other tools", listed)

    def _call(self, tool: str, arguments: Any, call_id: str = "", **options: Any) -> Observed:
        return self._client.call(tool, arguments, call_id=f"{self._case}-{call_id or new_id()}", **options)

    def _check(self, holds: bool, otherwise: str, seen: object) -> None:  # noqa: FBT001 - the condition
        missing = list(self._due)
        for each in self._world.ran()[self._earlier :]:
            if each not in missing:
                raise UnsafeError(f"{each[0]} ran with {each[1]}")
            missing.remove(each)
        if missing or not holds:
            raise AssertionError(f"{missing[0][0]} did not run" if missing else f"the model {otherwise}: {seen}")
