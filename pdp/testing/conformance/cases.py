"""The cases, which stand in cases.yaml, and the steps that they are made of."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pdp.decision import new_id
from pdp.documents import read_document
from pdp.testing.conformance.target import Observed, ToolClient
from pdp.testing.conformance.world import Setting, World

_SIDE_BY_SIDE: Final = 4

CASES: Final[dict[str, Any]] = read_document(Path(__file__).with_name("cases.yaml")).value
"""The cases by name: the setting of their world, and their steps, which are methods of `Trial` and their arguments."""


class UnsafeError(AssertionError):
    """Something ran that must not, with other arguments than it may, or more often."""


class Trial:
    """One case on one client. A step raises AssertionError; where anything ran but what the steps say, UnsafeError."""

    def __init__(self, case: str, world: World, client: ToolClient) -> None:
        self._case, self._world, self._client = case.replace(" ", "-"), world, client
        self._earlier, self._due = len(world.ran()), list[tuple[str, Any]]()

    def runs(self, tool: str, arguments: Any, got: Any = None, *, fails: bool = False, **options: Any) -> None:
        """Call a tool that has to run, with `got` where that is given; the model sees its result, or that it failed."""
        seen = self._call(tool, arguments, **options)
        self._due.append((tool, got or arguments))
        self._check(
            seen.is_error == fails and (fails or f"{tool} got" in seen.message), "does not see the result", seen
        )

    def refuses(self, tool: str, arguments: Any, *, dropped: bool = False) -> Observed:
        """Call a tool that must not run; the model is told why. `dropped`: that need not be an error."""
        seen = self._call(tool, arguments)
        self._check((seen.is_error or dropped) and bool(seen.message.strip()), "is not told why nothing ran", seen)
        return seen

    def replays(self, tool: str, arguments: Any, call_id: str) -> None:
        """Make a call once more, whatever the model is to see."""
        self._check(True, "", self._call(tool, arguments, call_id))

    def is_granted(self, arguments: Any) -> None:
        """Call what has to be held, and have it granted."""
        seen = self.refuses("pay_bill", arguments)
        self._check(seen.held is not None, "is not told what it waits for", seen)
        self._client.approve(seen.held or "")

    def engine_becomes(self, setting: Setting) -> None:
        """Let the engine have a fault, or none."""
        self._world.engine.become(setting)

    def cancels(self, tool: str, arguments: Any) -> None:
        """Give a call up while it is decided."""
        self._client.cancel(tool, arguments, call_id="given-up")

    def calls_at_once(self, bill: Any) -> None:
        """Make calls of all kinds at once, among them several for one grant."""
        self.is_granted(bill)
        notes = [("read_note", {"note": f"note {number}"}) for number in range(_SIDE_BY_SIDE)]
        calls = [*notes, *[("pay_bill", bill)] * _SIDE_BY_SIDE, ("wipe_disk", {"disk": "a"})]
        with ThreadPoolExecutor(len(calls)) as threads:
            seen = list(threads.map(self._call, *zip(*calls, strict=True), map(str, range(len(calls)))))
        self._due += [*notes, ("pay_bill", bill)]
        own = all(str(arguments["note"]) in each.message for each, (_, arguments) in zip(seen, notes, strict=False))
        denied = seen[-1].is_error and sum(each.is_error for each in seen) == _SIDE_BY_SIDE
        self._check(own and denied, "sees the result of another call", seen)

    def lists(self, shown: list[str], hidden: list[str]) -> None:
        """List the tools."""
        listed = sorted({*shown, *hidden}.intersection(self._client.listed()))
        self._check(listed == shown, "is told of other tools", listed)

    def _call(self, tool: str, arguments: Any, call_id: str = "", **options: Any) -> Observed:
        return self._client.call(tool, arguments, call_id=f"{self._case}-{call_id or new_id()}", **options)

    def _check(self, holds: bool, otherwise: str, seen: object) -> None:  # noqa: FBT001 - what is checked
        missing = list(self._due)
        for each in self._world.ran()[self._earlier :]:
            if each not in missing:
                raise UnsafeError(f"{each[0]} ran with {each[1]}")
            missing.remove(each)
        if missing or not holds:
            raise AssertionError(f"{missing[0][0]} did not run" if missing else f"the model {otherwise}: {seen}")
