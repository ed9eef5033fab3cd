"""Find the changes that cause a difference in decisions.

A change is a cause of a difference if the decision moves when the change alone is applied to the old bundle. Changes
that do not move it alone, but without which the new bundle decides otherwise, are a cause together. If no single change
matters, the cause is a smallest set of changes that together move the decision.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

from pdp.errors import EngineError, EngineTimeoutError, UsageError
from pdp.opa.evaluation import Evaluator
from pdp.workbench.diff.causes.changes import BundleChange, edition
from pdp.workbench.diff.comparison import WORKERS, ComparedCall, Difference, change_of, parsed_decision
from pdp.workbench.diff.groups import Causes
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.neighbours.values import as_dict

Cause = frozenset[int]
"""The numbers of the changes that together move a decision. Nearly always it is one change."""

MOST_CHANGES: Final = 200
"""The maximum number of changes that are tried as the cause of differences."""

_MOST_SETS: Final = 4
_MOST_LATE: Final = 3
_DOCUMENTS: Final = ("data.authz.decision", "data.authz.plan")


class Attribution(ExitStack):
    """Decides calls with single changes undone or applied. Close it after use. `data` is complete, old bundle first.

    `late` has a message for each evaluation that OPA did not finish within `timeout` seconds. After a few of them, no
    further change is tried.
    """

    def __init__(
        self, pair: BundlePair, data: Sequence[Mapping[str, Any]], changes: Sequence[BundleChange], *, timeout: float
    ) -> None:
        super().__init__()
        self.changes = changes
        self.late: list[str] = []
        self._sets: list[Cause] = []
        self._pair, self._data, self._timeout = pair, data, timeout
        self._evaluators = [
            self.enter_context(Evaluator(side.opa, side.bundle.modules, its, timeout=timeout))
            for side, its in zip((pair.old, pair.new), data, strict=True)
        ]
        self._pool = self.enter_context(ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-causes"))

    @property
    def unfinished(self) -> tuple[str, ...]:
        """A line that says that the causes of some differences are not known, because OPA was late."""
        return (f"causes: {self.late[0]}",) if self.late else ()

    def causes(self, differences: Sequence[Difference]) -> list[Causes]:
        """Return the causes of each difference, each of which alone moves the decision."""
        if len(self.changes) == 1:
            return [(frozenset((0,)),)] * len(differences)
        needed, enough = (self._single(differences, undone=undone) for undone in (True, False))
        return [self._causes(difference, *both) for difference, *both in zip(differences, needed, enough, strict=True)]

    def _causes(self, difference: Difference, needed: Cause, enough: Cause) -> Causes:
        """Return causes: changes that alone are `enough`, and together those without which the call is not moved."""
        causes = [frozenset((number,)) for number in sorted(enough)]
        if not needed <= enough:
            causes.append(needed)
        together = None if causes else self._together(difference)
        return tuple(causes) if together is None else (together,)

    def _single(self, differences: Sequence[Difference], *, undone: bool) -> list[Cause]:
        """Return for each difference the changes that move it if one of them is undone, or applied alone."""
        numbers = range(min(len(self.changes), MOST_CHANGES)) if differences else ()
        running = [self._pool.submit(self._moved, frozenset((each,)), differences, undone=undone) for each in numbers]
        moved = [each.result() for each in running]
        return [
            frozenset(number for number, moves in zip(numbers, moved, strict=True) if moves[at])
            for at in range(len(differences))
        ]

    def _together(self, difference: Difference) -> Cause | None:
        """Return a smallest set of changes that together move a call; None if all do not, or after too many sets."""

        def moves(changes: Cause) -> bool:
            return self._moved(changes, [difference], undone=False)[0]

        for known in self._sets:
            if moves(known):
                return known
        needed = list(range(len(self.changes)))
        if len(self._sets) >= _MOST_SETS or not moves(frozenset(needed)):
            return None
        size = len(needed)
        while size := size // 2:
            start = 0
            while start < len(needed):
                rest = needed[:start] + needed[start + size :]
                if rest and moves(frozenset(rest)):
                    needed = rest
                else:
                    start += size
        self._sets.append(frozenset(needed))
        return self._sets[-1]

    def _moved(self, causes: Cause, differences: Sequence[Difference], *, undone: bool) -> list[bool]:
        changes = [self.changes[number] for number in sorted(causes)]
        modules, data = edition(self._pair, self._data, changes, undone=undone)
        calls = [difference.call for difference in differences]
        bodies = [self._body(call, changes, data, undone=undone) for call in calls]
        answers = {
            plan: self.answers(modules, own, data=data, undone=undone, plan=plan)
            for plan in (False, True)
            if (own := [body for body, call in zip(bodies, calls, strict=True) if call.plan is plan])
        }
        moved = []
        for difference, body in zip(differences, bodies, strict=True):
            call, known = difference.call, answers[difference.call.plan]
            decision = (
                None if known is None or body not in known else parsed_decision(known[body], body, plan=call.plan)
            )
            sides = (decision, difference.new) if undone else (difference.old, decision)
            moved.append(decision is not None and difference.change.includes(change_of(*sides)))
        return moved

    def _body(
        self, call: ComparedCall, changes: Sequence[BundleChange], data: Mapping[str, Any], *, undone: bool
    ) -> bytes:
        """Return the request as the enforcement point sends it with these manifests, because it has their labels."""
        if call.plan or call.request is None or not any(change.tool for change in changes):
            return call.new if undone else call.old
        side = {"new" if undone else "old": as_dict(data.get("manifests"))}
        return self._pair.manifests.requests(call.request, **side)[undone]

    def answers(
        self,
        modules: Mapping[str, str],
        bodies: Sequence[bytes],
        *,
        data: Mapping[str, Any] | None = None,
        undone: bool = True,
        plan: bool = False,
    ) -> Mapping[bytes, bytes | None] | None:
        """Return a bundle's answers by request, with other modules and data.

        Return None if OPA times out, or rejects the policy: another change may not compile without an undone change.
        """
        side = self._pair.new if undone else self._pair.old
        if not bodies or len(self.late) >= _MOST_LATE:
            return None
        with ExitStack() as own:
            evaluator = self._evaluators[undone]
            if data is not None and data is not self._data[undone]:
                evaluator = own.enter_context(Evaluator(side.opa, side.bundle.modules, data, timeout=self._timeout))
            try:
                return evaluator.evaluate(bodies, changed=modules, document=_DOCUMENTS[plan]).answers
            except EngineTimeoutError as error:
                self.late.append(error.message)
            except (UsageError, EngineError):
                pass
            return None
