"""One invariant, ready for calls: from a manifest (CEL, and the arguments that it sets) or from Python (functions).

What a corrector gives is held to what it declares.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from pdp.contract.json_object import JsonObject
from pdp.contract.registry.tool_contract import DROP_STEP, DropStep, end_coroutine
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.expressions.expression import compile_check
from pdp.manifest.expressions.path import ExpressionError
from pdp.manifest.records import Correction
from pdp.proposal import RejectionCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.contract.registry.tool_contract import ToolInvariant
    from pdp.manifest.records import Invariant

_log = logging.getLogger("pdp.contract")

_LONGEST: Final = 200


class Circumstances:
    """What an invariant sees beside the call.

    Args:
        state: the state, plain JSON.
        config: the tool's resolved config.
        plan: gives, for the call's arguments, the plan up to and including the call, `[{tool, arguments}]`; None: the
            state has it, or there is none.
    """

    __slots__ = ("_config_view", "_state_view", "config", "plan", "state")

    def __init__(
        self,
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        plan: Callable[[dict[str, Any]], list[Any]] | None = None,
    ) -> None:
        self.state = state
        self.config = config
        self.plan = plan
        self._state_view: JsonObject | None = None
        self._config_view: JsonObject | None = None

    def for_expressions(self, arguments: dict[str, Any], *, with_plan: bool) -> dict[str, Any]:
        """Return what CEL sees as `state`, `config` and, if it is read, `plan`."""
        plan = self.plan(arguments) if with_plan and self.plan is not None else []
        return {"state": self.state, "config": self.config, "plan": plan}

    def for_functions(self, arguments: dict[str, Any]) -> tuple[JsonObject, JsonObject]:
        """Return what functions see: the state, with the plan as its member `plan`, and the config."""
        if self._state_view is None or self._config_view is None:
            self._state_view = JsonObject.read(self.state)
            self._config_view = JsonObject.read(self.config, "config")
        if self.plan is None:
            return self._state_view, self._config_view
        return self._state_view.replaced({"plan": self.plan(arguments)}), self._config_view


class RuleRejectsError(Exception):
    """A rule rejects a call, whatever it could correct: `why` begins with its id.

    `violated`: whether it is known that the call violates it. Only then the rule's own code stands for it.
    """

    def __init__(self, rule: Rule, why: str, *, violated: bool = True) -> None:
        super().__init__(why)
        self.rule = rule
        self.why = why
        self.rejection = rule.rejection if violated else RejectionCode.INVALID_PAYLOAD


class Rule(Protocol):
    """An invariant, ready for calls."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def rule(self) -> str:
        """What has to hold."""

    @property
    def rejection(self) -> RejectionCode:
        """The code of a call that violates it and is not corrected."""

    def violation(self, arguments: dict[str, Any], about: Circumstances) -> str | None:
        """Return `ID: why` when the call violates it, or it cannot be told."""

    def correction(self, arguments: dict[str, Any], about: Circumstances) -> dict[str, Any] | DropStep | None:
        """Return mended arguments, `DROP_STEP`, or None when it only rejects."""


class ExpressionRule:
    """An invariant of a manifest."""

    __slots__ = ("_check", "_correct", "_reads_plan", "id", "rejection", "rule", "text")

    def __init__(self, invariant: Invariant) -> None:
        self.id = invariant.id
        self.rule = invariant.rule
        self.text = invariant.check
        self.rejection = RejectionCode(invariant.rejection or RejectionCode.INVALID_PAYLOAD)
        self._check = compile_check(invariant.check)
        self._correct = invariant.correct
        self._reads_plan = "plan" in invariant.check

    def violation(self, arguments: dict[str, Any], about: Circumstances) -> str | None:
        """Return `ID: why` when the call violates it, or it cannot be told."""
        try:
            holds = self._check.holds(arguments, about.for_expressions(arguments, with_plan=self._reads_plan))
        except ExpressionError as error:
            # Not knowing is no reason to correct.
            raise RuleRejectsError(self, f"{self.id}: {error.message}", violated=False) from error
        return None if holds else f"{self.id}: {self.rule}"

    def correction(
        self,
        arguments: dict[str, Any],
        about: Circumstances,  # noqa: ARG002 - what a manifest sets does not depend on it
    ) -> dict[str, Any] | DropStep | None:
        """Return mended arguments, `DROP_STEP`, or None when it only rejects."""
        if isinstance(self._correct, Correction):
            return {**arguments, **self._correct.set}
        return DROP_STEP if self._correct == "prune" else None


class PythonRule:
    """An invariant of a contract in Python.

    Args:
        invariant: the invariant.
        arguments: the arguments that the tool's schema names: what it may correct when it declares nothing narrower.
    """

    __slots__ = ("_declared", "_invariant")

    rejection = RejectionCode.INVALID_PAYLOAD

    def __init__(self, invariant: ToolInvariant, arguments: frozenset[str]) -> None:
        self._invariant = invariant
        self._declared = arguments if invariant.corrects is None else frozenset(invariant.corrects)

    @property
    def id(self) -> str:
        """Its id."""
        return self._invariant.id

    @property
    def rule(self) -> str:
        """What has to hold."""
        return self._invariant.rule

    def violation(self, arguments: dict[str, Any], about: Circumstances) -> str | None:
        """Return `ID: why` when the call violates it, or it cannot be told."""
        state, config = about.for_functions(arguments)
        try:
            holds = self._invariant.check(_copy(arguments), state, config)
        except Exception as error:
            _log.exception("the check of invariant %s raised", self.id)
            raise RuleRejectsError(self, f"{self.id}: its check raised {type(error).__name__}") from error
        if holds is not True and holds is not False:
            end_coroutine(holds)
            raise RuleRejectsError(self, f"{self.id}: its check gives {type(holds).__name__}, not true or false")
        return None if holds else f"{self.id}: {self.rule}"

    def correction(self, arguments: dict[str, Any], about: Circumstances) -> dict[str, Any] | DropStep | None:
        """Return mended arguments, `DROP_STEP`, or None when it only rejects."""
        if self._invariant.correct is None:
            return None
        state, config = about.for_functions(arguments)
        try:
            given = self._invariant.correct(_copy(arguments), state, config)
        except Exception as error:
            _log.exception("the corrector of invariant %s raised", self.id)
            raise RuleRejectsError(self, f"{self.id}: its corrector raised {type(error).__name__}") from error
        mended, done = (given, True) if given is DROP_STEP else _pair(given, self)
        if not done:
            return None
        if mended is DROP_STEP:
            return DROP_STEP
        return self._admitted(mended, arguments)

    def _admitted(self, mended: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what the corrector gave, if it stays within what it declares."""
        if type(mended) is not dict:
            raise RuleRejectsError(self, f"{self.id}: its corrector gives {type(mended).__name__}, not arguments")
        try:
            check_json(mended, depth=1)
        except JsonValueError as error:
            raise RuleRejectsError(self, f"{self.id}: its corrector gives no JSON: {error}"[:_LONGEST]) from None
        outside = set(changed(arguments, mended)) - self._declared
        if outside:
            raise RuleRejectsError(
                self, f"{self.id}: its corrector changes {min(outside)[:_LONGEST]}, which it does not declare"
            )
        return mended


def _pair(given: Any, rule: Rule) -> tuple[Any, bool]:
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], bool):  # noqa: PLR2004 - (call, done)
        return given
    end_coroutine(given)
    raise RuleRejectsError(rule, f"{rule.id}: its corrector has to return (arguments, true or false) or DROP_STEP")


def _copy(arguments: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = orjson.loads(orjson.dumps(arguments))
    return copied


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that differ, sorted; 1 and true differ."""
    names = before.keys() | after.keys()
    return tuple(sorted(name for name in names if _member(before, name) != _member(after, name)))


def _member(arguments: Mapping[str, Any], name: str) -> bytes | None:
    return canonical(arguments[name]) if name in arguments else None
