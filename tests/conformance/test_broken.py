"""The suite detects faults. For each case, a test runs a target that runs forbidden calls, and compares the failure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdp import Pep
from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import run
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.conformance.local import LocalClient, LocalTarget, opened_pep


class Open(LocalClient):
    """A client that runs a denied call if the text of the denial contains `word`."""

    word = ""

    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        seen = super().call(tool, arguments, **options)
        return self.bypass(tool, arguments) if self.word and self.word in seen.message else seen

    def bypass(self, tool: str, arguments: Mapping[str, Any]) -> Observed:
        return Observed(run_body(self.world.record, tool, arguments), is_error=False)


def opens_at(code: str) -> type[Open]:
    return type("OpensAt", (Open,), {"word": code})


class Closed(Open):
    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        return Observed("no", is_error=True)


class Uncorrected(Open):
    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        seen = self.pep.decide({"tool": tool, "arguments": arguments}, self.world.session)
        return self.bypass(tool, arguments) if seen.allowed else Observed(seen.answer.text, is_error=True)


class ApprovesTools(Open):
    """A client that accepts an approval for all calls of the approved tool, even with other arguments."""

    approved = False

    def approve(self, held: str) -> None:
        self.approved = True

    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        return self.bypass(tool, arguments) if self.approved else super().call(tool, arguments, **options)


class ByPositionUnseen(Open):
    def call(self, tool: str, arguments: Mapping[str, Any], *, by_position: bool = False, **options: Any) -> Observed:
        decided = {"note": "?"} if by_position else arguments
        super().call(tool, decided, **options)
        return Observed("read_note got it", is_error=False)


class Flat(Open):
    """A client that hides nested arguments from the policy, but passes the nested arguments to the tool."""

    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        flat = {name: value for name, value in arguments.items() if not isinstance(value, dict)}
        seen = self.pep.decide({"tool": tool, "arguments": flat}, self.world.session)
        return self.bypass(tool, arguments) if seen.allowed else Observed(seen.answer.text, is_error=True)


class ApprovesAtOnce(Open):
    """A client that uses an approval without checking whether another call has already used the approval."""

    approved = False

    def approve(self, held: str) -> None:
        self.approved = True

    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        granted = self.approved and tool == "pay_bill"
        return self.bypass(tool, arguments) if granted else super().call(tool, arguments, **options)


class Remembers(Open):
    """A client that returns the stored answer for a repeated call, but runs the tool again."""

    def __init__(self, pep: Pep, world: World) -> None:
        super().__init__(pep, world)
        self.known: dict[str, bool] = {}

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str = "", **options: Any) -> Observed:
        if self.known.get(call_id):
            return self.bypass(tool, arguments)
        seen = super().call(tool, arguments, call_id=call_id, **options)
        self.known[call_id] = not seen.is_error
        return seen


class Uncancelled(Open):
    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        super().cancel(tool, arguments, call_id=call_id)
        self.bypass(tool, arguments)


class Retries(Open):
    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        seen = super().call(tool, arguments, **options)
        return super().call(tool, arguments, **options) if "TOOL_EXECUTION_FAILED" in seen.message else seen


class ListsAll(Open):
    def listed(self) -> Sequence[str]:
        return [*super().listed(), "wipe_disk"]


class Beside(Open):
    """A client in which another handler can overrule the denial of the enforcement point."""

    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        seen = super().call(tool, arguments, **options)
        return self.bypass(tool, arguments) if seen.is_error and self.world.setting == "beside" else seen


BROKEN: Mapping[str, tuple[type[LocalClient], str]] = {
    "allow": (Closed, "AssertionError('read_note did not run')"),
    "deny": (opens_at("scopes.missing"), """UnsafeError("wipe_disk ran with {'disk': 'a'}")"""),
    "pause and resume": (
        opens_at("approvals.required"),
        """UnsafeError("pay_bill ran with {'payee': 'paused', 'amount': 500}")""",
    ),
    "correct": (Uncorrected, """UnsafeError("fetch_page ran with {'url': 'a', 'limit': 99}")"""),
    "prune": (opens_at("dropped"), """UnsafeError("ping_host ran with {'host': 'here'}")"""),
    "arguments changed after approval": (
        ApprovesTools,
        """UnsafeError("pay_bill ran with {'payee': 'changed', 'amount': 501}")""",
    ),
    "positional arguments": (ByPositionUnseen, """UnsafeError("read_note ran with {'note': '?'}")"""),
    "nested arguments": (Flat, """UnsafeError("read_note ran with {'note': 'a', 'filter': {'tags': [['a']]}}")"""),
    "parallel calls": (ApprovesAtOnce, """UnsafeError("pay_bill ran with {'payee': 'parallel', 'amount': 500}")"""),
    "replayed call": (Remembers, """UnsafeError("pay_bill ran with {'payee': 'replayed', 'amount': 500}")"""),
    "cancelled call": (Uncancelled, """UnsafeError("read_note ran with {'note': 'given up'}")"""),
    "tool raises": (Retries, """UnsafeError("post_note ran with {'note': 'a'}")"""),
    "unknown tool": (opens_at("INVALID_TOOL_NAME"), """UnsafeError("open_shell ran with {'command': 'a'}")"""),
    "list filtering": (
        ListsAll,
        """AssertionError("the model sees other tools: ['pay_bill', 'read_note', 'wipe_disk']")""",
    ),
    "engine down": (opens_at("engine.unavailable"), """UnsafeError("read_note ran with {'note': 'a'}")"""),
    "engine slow": (opens_at("engine.timeout"), """UnsafeError("read_note ran with {'note': 'a'}")"""),
    "engine answers garbage": (
        opens_at("engine.answer_invalid"),
        """UnsafeError("read_note ran with {'note': 'a'}")""",
    ),
    "bundle stale": (opens_at("bundle.stale"), """UnsafeError("read_note ran with {'note': 'a'}")"""),
    "enforcement point raises": (opens_at("a fault of"), """UnsafeError("read_note ran with {'note': 'a'}")"""),
    "handler registered beside ours": (Beside, """UnsafeError("wipe_disk ran with {'disk': 'a'}")"""),
}
"""For each case, a client that fails open, and the failure that the suite must report."""


class BrokenTarget(LocalTarget):
    def __init__(self, client: type[LocalClient], impossible: Mapping[str, str] | None = None) -> None:
        self.client, self.impossible = client, impossible or {}

    @contextmanager
    def open(self, world: World) -> Iterator[LocalClient]:
        with opened_pep(world) as pep:
            yield self.client(pep, world)


def test_every_conformance_case_has_a_broken_target_that_fails_the_case() -> None:
    assert list(BROKEN) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_suite_reports_each_target_that_fails_open(case: str, tmp_path: Path) -> None:
    client, finding = BROKEN[case]
    assert run(BrokenTarget(client), tmp_path, [case]) == {case: f"fail: {finding}"}


@pytest.mark.parametrize("case", CASES)
def test_case_declared_impossible_fails_if_a_tool_runs(case: str, tmp_path: Path) -> None:
    client, finding = BROKEN[case]
    result = run(BrokenTarget(client, {case: "because"}), tmp_path, [case])[case]
    assert result == (f"fail: {finding}" if finding.startswith("UnsafeError") else "impossible: because")


class Mute(Open):
    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        return Observed("", super().call(tool, arguments, **options).is_error)


def failed_check(fault: str, *, is_error: bool) -> str:
    return f"fail: {AssertionError(f'the model {fault}: {Observed(str(), is_error)}')!r}"


class Unable(Open):
    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        raise NotImplementedError


class Raising(Open):
    def call(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> Observed:
        raise ValueError("a fault of the target")


@pytest.mark.parametrize(
    ("client", "case", "finding"),
    [
        (Mute, "deny", failed_check("does not see why nothing ran", is_error=True)),
        (Mute, "allow", failed_check("does not see the result", is_error=False)),
        (Raising, "deny", "fail: ValueError('a fault of the target')"),
        (Unable, "cancelled call", "fail: NotImplementedError()"),
    ],
)  # fmt: skip
def test_suite_reports_target_faults_even_if_no_tool_ran(
    client: type[LocalClient], case: str, finding: str, tmp_path: Path
) -> None:
    assert run(BrokenTarget(client), tmp_path, [case]) == {case: finding}


@pytest.mark.parametrize(
    ("client", "case", "finding"),
    [
        (Unable, "cancelled call", "impossible: because"),
        (Raising, "deny", "fail: ValueError('a fault of the target')"),
        (LocalClient, "deny", "fail: the case passes, although the target calls it impossible"),
    ],
)
def test_case_declared_impossible_fails_if_the_target_passes_the_case(
    client: type[LocalClient], case: str, finding: str, tmp_path: Path
) -> None:
    assert run(BrokenTarget(client, {case: "because"}), tmp_path, [case]) == {case: finding}


def test_suite_fails_each_case_if_the_target_does_not_open(tmp_path: Path) -> None:
    def refuse(*_: object) -> LocalClient:
        raise OSError("no such client")

    result = run(BrokenTarget(refuse), tmp_path, ["allow", "enforcement point raises"])  # type: ignore[arg-type]
    assert result == dict.fromkeys(
        ["allow", "enforcement point raises"], "fail: not opened or closed: OSError('no such client')"
    )
