"""Find a call that a new version of the policies admits and an old one does not, and confirm it on the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from pdp.errors import EngineError, EngineTimeoutError, UsageError
from pdp.json import JsonValueError, canonical
from pdp.opa.evaluation import Evaluator
from pdp.opa.modules import Module
from pdp.workbench.engines import ENGINE_TIMEOUT, OPA_SHARE
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.values import GONE, JsonPath, as_dict, as_list, at, edited, leaves
from pdp.workbench.proof.answers import HeadAnswer
from pdp.workbench.proof.models import Call, SmallModels
from pdp.workbench.proof.terms import Term, neg, subterms

VERDICT: Final = 2
"""The level of a call that the new version decides less strictly."""

_STRICTNESS: Final = ("ALLOW", "STEP_UP", "DENY")
_DIGEST: Final = ("action", "properties", "manifest_digest")
_DECISION: Final = "authz.decision.reasons"  # read where no head is asked for
_SHAPE: Final = "authz.lib.shape.valid"
_MOST_KNOWN: Final = 400
_MOST_BASES: Final = 5
_MOST_NAMES: Final = 2
_ROUNDS: Final = 5
_MOST_REMOVALS: Final = 3


class CallOnData(NamedTuple):
    """A request, and the data on which it is decided."""

    given: Any
    data: Mapping[str, Any]


class Claim(NamedTuple):
    """A claim about a head that was not proved: where `assumed` and the first term of a way hold, the second holds.

    The last way is the whole claim. Calls that contradict an earlier way are more likely to change the verdict.
    """

    head: str
    assumed: Term
    ways: tuple[tuple[Term, Term], ...]


class SideAnswer(NamedTuple):
    """What one version decides for a trial, and what it finds for a head."""

    verdict: str | None
    obligations: frozenset[bytes]
    items: frozenset[bytes]
    is_valid: bool


_FAILED: Final = (SideAnswer(None, frozenset(), frozenset(), is_valid=False),) * 2


class EnginePair(ExitStack):
    """Two versions of the policies on OPA, with data that a trial may replace. Close it after use.

    Its methods raise `EngineTimeoutError` if OPA does not answer within `timeout` seconds.
    """

    def __init__(
        self,
        opa: Path,
        old: Mapping[str, Module],
        new: Mapping[str, Module],
        data: Mapping[str, Any] = MappingProxyType({}),
        *,
        timeout: float = OPA_SHARE * ENGINE_TIMEOUT,
    ) -> None:
        super().__init__()
        self._has_shape = any("\npackage authz.lib.shape\n" in f"\n{module.text}" for module in new.values())
        texts = [{path: module.text for path, module in side.items()} for side in ([old] if old is new else [old, new])]
        self._sides = [self.enter_context(Evaluator(opa, side, data, timeout=timeout)) for side in texts]

    def levels(self, head: str, trials: Sequence[CallOnData]) -> list[int]:
        """Return for each trial how much more the new version admits; see `_level`."""
        return [_level(head.rpartition(".")[2], *pair) for pair in self.answers(head, trials)]

    def loosens(self, trials: Sequence[CallOnData]) -> list[bool]:
        """Return for each trial whether the new version decides it less strictly, or drops an obligation."""
        return [_is_looser(*pair) for pair in self.answers(_DECISION, trials)]

    def answers(self, head: str, trials: Sequence[CallOnData]) -> list[tuple[SideAnswer, SideAnswer]]:
        """Return what both versions answer for each trial."""
        return self._answers(head, trials)

    def _answers(self, head: str, trials: Sequence[CallOnData]) -> list[tuple[SideAnswer, SideAnswer]]:
        if not trials:
            return []
        roots = sorted({root for trial in trials for root in trial.data})
        stated = "".join(f"{root} := e.data.{root}; " for root in roots)
        given = " ".join(f"with data.{root} as {root}" for root in roots)
        items = f"[items | items := data.{head}]"
        documents = f'"decision": [d | d := data.authz.decision], "items": {items}, "valid": [1 | data.{_SHAPE}]'
        query = f"[x | some e in input; given := e.given; {stated}x := {{{documents}}} with input as given {given}]"
        data = ({root: trial.data.get(root, {}) for root in roots} for trial in trials)
        try:
            body = canonical([{"given": trial.given, "data": each} for trial, each in zip(trials, data, strict=True)])
            sides = [side.query(query, body)["result"][0]["expressions"][0]["value"] for side in self._sides]
        except EngineTimeoutError:
            raise
        except (UsageError, EngineError, JsonValueError):
            # A number is too large, or an evaluation fails, for example as definitions conflict. The others are asked
            # separately.
            half = len(trials) // 2
            return self._answers(head, trials[:half]) + self._answers(head, trials[half:]) if half else [_FAILED]
        return [(self._read(before), self._read(after)) for before, after in zip(sides[0], sides[-1], strict=True)]

    def _read(self, answer: Any) -> SideAnswer:
        decision = answer["decision"][0] if answer["decision"] else {}
        parts = decision.get("obligations", ()), *(answer["items"] or [()])
        obligations, items = (frozenset(map(canonical, part)) for part in parts)
        return SideAnswer(decision.get("verdict"), obligations, items, bool(answer["valid"]) or not self._has_shape)

    def returned(self, calls: Iterable[Call]) -> dict[Call, Any]:
        """Return what builtin functions return for arguments; `GONE` if they fail."""
        answers: dict[Call, Any] = {}
        for name, given in sorted(calls):
            arguments = ", ".join(f"input[{place}]" for place in range(len(orjson.loads(given))))
            # A template is joined as far as its parts are texts.
            written = f'concat("", [{arguments}])' if name == "template" else f"{name}({arguments})"
            try:
                values = self._sides[-1].query(f"[x | x := {written}]", given)["result"][0]["expressions"][0]["value"]
            except EngineTimeoutError:
                raise
            except (UsageError, EngineError):
                continue
            answers[name, given] = values[0] if values else GONE
        return answers


def _level(part: str, old: SideAnswer, new: SideAnswer) -> int:
    """Return 2 if the new version decides less strictly and the head differs, 1 if only the head admits more, or 0."""
    if old.items != new.items and _is_looser(old, new):
        return VERDICT
    if part in ("allow", "obligations"):
        admits = not (new.items <= old.items if part == "allow" else old.items <= new.items)
    else:
        admits = bool(old.items) and not new.items
    return int(admits and new.is_valid)


def _is_looser(old: SideAnswer, new: SideAnswer) -> bool:
    if old.verdict not in _STRICTNESS or new.verdict not in _STRICTNESS:
        return False
    if old.verdict == new.verdict:
        return new.verdict == "ALLOW" and not old.obligations <= new.obligations
    return _STRICTNESS.index(new.verdict) < _STRICTNESS.index(old.verdict)


class WitnessSearch:
    """Searches calls that the new version admits and the old one does not, within `seconds` for each claim.

    `known` are requests of scenarios, and `data` is the data on which they are decided.
    """

    def __init__(self, engines: EnginePair, known: Sequence[bytes], data: Mapping[str, Any], seconds: float) -> None:
        self._engines = engines
        self._data = data
        self._known = [CallOnData(orjson.loads(body), data) for body in sorted(known, key=len)[:_MOST_KNOWN]]
        self._seconds = seconds

    def answer(self, answer: HeadAnswer, claim: Claim) -> HeadAnswer:
        """Return the answer as `wider` if a call shows it, or as `bounded` if no call with small collections does."""
        found = self.find(claim)
        if isinstance(found, str):
            return answer if not claim.ways else replace(answer, word="not proved" if found else "bounded", term=found)
        trial, level = found
        data = None if trial.data is self._data else canonical(dict(trial.data))
        return replace(
            answer, word="wider", term="", request=canonical(trial.given), data=data, verdict=level == VERDICT
        )

    def find(self, claim: Claim) -> tuple[CallOnData, int] | str:
        """Return a confirmed trial and its level, "" if no call with small collections exists, or what is unknown."""
        deadline = time.monotonic() + self._seconds
        answers = self._engines.answers(claim.head, self._known)
        part = claim.head.rpartition(".")[2]
        levels = [_level(part, *pair) for pair in answers]
        level, best = max(levels, default=0), CallOnData({}, {})
        if level:
            best = self._known[levels.index(level)]
        verdicts = [old.verdict for old, _ in answers]
        for before, after in dict.fromkeys(claim.ways):
            models = SmallModels([before, neg(after)], self._seconds / 4)
            for base, data in self._bases(_texts(before) ^ _texts(after), models, verdicts):
                if level == VERDICT or time.monotonic() > deadline:
                    break
                found, trial = self._changed(claim.head, models, base, data, deadline)
                if found > level:
                    level, best = found, trial
        if level:
            return self._smaller(claim.head, best, level, deadline), level
        if not claim.ways:
            return "time"
        before, after = claim.ways[-1]
        models = SmallModels([claim.assumed, before, neg(after)], self._seconds / 4)
        if models.impossible():
            return "a computed collection" if models.formulas.limited else ""
        return ", ".join(models.formulas.coarse) or "time"

    def _changed(
        self, head: str, models: SmallModels, base: CallOnData, data: Mapping[str, Any], deadline: float
    ) -> tuple[int, CallOnData]:
        """Return the level of the nearest model to a call, and the model as a trial. Unchanged data is `data`."""
        for _ in range(_ROUNDS):
            try:
                model = models.near(base.given, base.data)
            except JsonValueError:
                break  # A number of the model has more than 64 bits.
            if model is None:
                break
            trial = CallOnData(model.given, data if model.data == base.data else model.data)
            level = self._engines.levels(head, [trial])[0]
            if level or time.monotonic() > deadline:
                return level, trial
            # The engine refutes the model, so a function returns something else than the solver chose.
            returned = self._engines.returned(model.calls)
            if not returned:
                break
            models.learn(returned)
        return 0, base

    def _bases(
        self, names: set[str], models: SmallModels, verdicts: Sequence[str | None]
    ) -> Iterator[tuple[CallOnData, Mapping[str, Any]]]:
        """Yield calls to change, each with all its data: admitted calls that resemble the formulas, and no call at all.

        The best call is also yielded as a call of tools with other `names`.
        """
        ranked: dict[str | None, tuple[int, int, int]] = {}
        for place, (trial, verdict) in enumerate(zip(self._known, verdicts, strict=True)):
            if verdict in _STRICTNESS[:2]:
                shared = models.formulas.strings.keys() & {
                    leaf for leaf in leaves(trial.given) if isinstance(leaf, str)
                }
                rank = -len(shared), _STRICTNESS.index(verdict), place
                ranked[tool_of(trial.given)] = min(rank, ranked.get(tool_of(trial.given), rank))
        bases = [_small(self._known[place]) for _, _, place in sorted(ranked.values())[:_MOST_BASES]]
        yield from ((base, self._data) for base in bases)
        for name in sorted(names)[:_MOST_NAMES] if bases else ():
            renamed = _renamed(bases[0], name)
            yield renamed, renamed.data
        nothing = CallOnData({}, {root: part for root, part in self._data.items() if root != "manifests"})
        yield nothing, nothing.data

    def _smaller(self, head: str, trial: CallOnData, level: int, deadline: float) -> CallOnData:
        """Remove what the difference does not need from a request."""
        for _ in range(_MOST_REMOVALS):
            paths = sorted(_paths(trial.given), key=lambda path: (len(path), _later_first(path[-1])))
            tried = [_without(trial, [path]) for path in paths]
            found = self._engines.levels(head, tried)
            needless = [path for path, remaining in zip(paths, found, strict=True) if remaining >= level]
            # Two parts may be needless each, but not both, so the removals are tried one after the other.
            steps = [_without(trial, needless[: end + 1]) for end in range(len(needless))]
            found = self._engines.levels(head, steps)
            kept = [step for step, remaining in zip(steps, found, strict=True) if remaining >= level]
            if not kept:
                break
            trial = kept[-1]
            if time.monotonic() > deadline:
                break
        return trial


def _without(trial: CallOnData, paths: Iterable[JsonPath]) -> CallOnData:
    return trial._replace(given=edited(trial.given, *((path, GONE) for path in paths)))


def _later_first(step: str | int) -> int:
    return -step if isinstance(step, int) else 1


def _paths(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the paths of all values inside a value."""
    parts: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(as_list(value))
    for step, inner in parts:
        yield (*path, step)
        yield from _paths(inner, (*path, step))


def _texts(term: Term) -> set[str]:
    return {str(part.args[0]) for part in subterms([term]) if part.op == "str"}


def _small(trial: CallOnData) -> CallOnData:
    """Return a trial without the entries of other tools, so that the solver has less to keep."""
    digest, tool = at(trial.given, _DIGEST), tool_of(trial.given)
    manifest = as_dict(at(trial.data, ("manifests", digest)))
    tools = {name: entry for name, entry in as_dict(manifest.get("tools")).items() if name == tool}
    return trial._replace(data={**trial.data, "manifests": {digest: {**manifest, "tools": tools}} if manifest else {}})


def _renamed(trial: CallOnData, name: str) -> CallOnData:
    """Return a call of a tool with another name and the same entry."""
    digest, tool = at(trial.given, _DIGEST), tool_of(trial.given)
    manifest = as_dict(at(trial.data, ("manifests", digest)))

    def renamed(names: Any) -> dict[str, Any]:
        return {name if old == tool else old: value for old, value in as_dict(names).items()}

    agents = {agent: renamed(pins) for agent, pins in as_dict(manifest.get("agents")).items()}
    changed = {**manifest, "tools": renamed(manifest.get("tools")), **({"agents": agents} if agents else {})}
    given = edited(trial.given, (("action", "properties", "tool"), name))
    return CallOnData(given, {**trial.data, "manifests": {digest: changed}})
