"""Write the scenario that kills a survivor, as the proposal of a call.

It is an existing scenario of the tool with only the necessary changes, so that a person wrote all other values.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, Final

import orjson
import yaml
from pydantic import ValidationError

from pdp.decision import Decision, Verdict
from pdp.engine.protocol import Engine
from pdp.errors import PdpError
from pdp.json import canonical, thawed
from pdp.manifest.diff import Direction
from pdp.manifest.effective import EffectiveManifest
from pdp.pep import Pep
from pdp.workbench.diff.comparison import change_of
from pdp.workbench.mutation.mutant import ProposedScenario
from pdp.workbench.mutation.trial import Recorded
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.proposals import sourced_arguments
from pdp.workbench.neighbours.values import GONE, Edit, JsonPath, as_dict, as_list, at, edited
from pdp.workbench.scenarios.files.scenario import Expect, proposed_tool
from pdp.workbench.scenarios.files.suite import laid_over
from pdp.workbench.scenarios.running.expectation import Happened, actual

_ONE_LINE: Final = 100_000
_SHOWN: Final = 40
_NEAREST: Final = 4
_DECIDED: Final = Expect(verdict=None, codes=(), obligations=())
"""An expectation with the fields of a decision that a proposed scenario expects."""

_CLAIMS: Final = ("roles", "limits", "clearances", "entitlements", "act")
_FIELDS: Final = ("purpose", "idempotency_key", "time", "agent")
_ARGUMENTS: Final = "arguments"


@dataclass(frozen=True, slots=True)
class _Call:
    """A proposal and its whole session. `own` is the session as a scenario writes it, without the file's session."""

    proposal: dict[str, Any]
    session: dict[str, Any]
    own: dict[str, Any]

    def changed(self, edits: Sequence[Edit]) -> "_Call":
        proposal, patch, own = self.proposal, dict[str, Any](), self.own
        for path, value in edits:
            if path[0] == _ARGUMENTS:
                proposal = edited(proposal, (path, value))
            else:
                known = (path, None if value is GONE else value)
                patch, own = edited(patch, known), edited(own, known)
        return _Call(proposal, laid_over(self.session, patch), own)


class CallWriter:
    """Writes calls that two engines decide differently as proposals in scenarios of a suite.

    `manifests` are the manifests for the two engines: the suite's manifest, and the same manifest or a mutant of it.
    """

    def __init__(self, ran: Recorded, manifests: Sequence[EffectiveManifest], engines: Sequence[Engine]) -> None:
        self._suite, self._results = ran.suite, ran.results
        self._peps = [Pep(manifest, engine) for manifest, engine in zip(manifests, engines, strict=True)]

    def written(self, request: Mapping[str, Any]) -> ProposedScenario | None:
        """Return a scenario that proposes the call of a request; None if no proposal shows the difference."""
        starts = [(start, _edits(sent, request)) for start, sent in self._starts(tool_of(request))]
        for start, edits in sorted(starts, key=lambda pair: len(pair[1]))[:_NEAREST]:
            if self._change(start.changed(edits)) is not None:
                return self._scenario(start, self._plainest(start, edits))
        return None

    def _plainest(self, start: _Call, edits: Sequence[Edit]) -> list[Edit]:
        """Drop each edit that is not needed, and round each number if the rounded number shows the difference too."""
        kept = list(edits)
        for edit in edits:
            path, value = edit
            plainer: list[tuple[Edit, ...]] = [(), *(((path, each),) for each in _plain_numbers(value))]
            for instead in plainer:
                at_edit = kept.index(edit)
                other = [*kept[:at_edit], *instead, *kept[at_edit + 1 :]]
                if self._change(start.changed(other)) is not None:
                    kept = other
                    break
        return kept

    def _starts(self, tool: str | None) -> Iterator[tuple[_Call, dict[str, Any]]]:
        """Yield the calls that begin a scenario of the tool and an example call, each with its request."""
        callers = list[_Call]()
        suite = self._suite
        for scenario, sessions, result in zip(suite.scenarios, suite.sessions, self._results, strict=True):
            step, session, answers = scenario.steps[0], sessions[0], result.steps[0].answers
            if session is None or step.session or step.at or not isinstance(step.propose, dict) or not answers:
                continue
            call = _Call(dict(step.propose), session.model_dump(mode="json", exclude_defaults=True), scenario.session)
            callers.append(call)
            if proposed_tool(step.propose) == tool and _ARGUMENTS in step.propose:
                yield call, orjson.loads(answers[0].body)
        entry = suite.manifest.tools.get(tool or "")
        if entry is not None and callers:
            example = {"tool": tool, _ARGUMENTS: sourced_arguments(entry.schema_, entry.provenance.required)}
            call = replace(min(callers, key=lambda call: len(canonical(call.own))), proposal=example)
            request = self._peps[0].decide(call.proposal, call.session).request
            if request is not None:
                yield call, request

    def _change(self, call: _Call) -> tuple[dict[str, Any], Direction] | None:
        """Return the first engine's decision as an expectation and the direction of the change; None if it is equal."""
        decisions: list[Decision | None] = []
        with suppress(PdpError, ValidationError):
            decisions = [pep.decide(call.proposal, call.session).decision for pep in self._peps]
        if len(decisions) < len(self._peps) or decisions[0] is None or decisions[1] is None:
            return None
        before, after = (actual(_DECIDED, Happened(decision=decision)) for decision in decisions)
        change = change_of(decisions[0], decisions[1])
        if change is None or before == after:
            return None
        if before["obligations"] == after["obligations"]:
            del before["obligations"]
        if before["verdict"] == Verdict.ALLOW and before["codes"] == after["codes"]:
            del before["codes"]
        return before, change.direction

    def _scenario(self, start: _Call, edits: Sequence[Edit]) -> ProposedScenario | None:
        call = start.changed(edits)
        change = self._change(call)
        if change is None:
            return None
        expect, direction = change
        with_values = ", ".join(f"{path[-1]} {_shown(value)}" for path, value in edits)
        scenario = {
            "name": f"{proposed_tool(call.proposal)}{' with ' * bool(edits)}{with_values} is {expect['verdict']}",
            **({"session": call.own} if call.own else {}),
            "propose": call.proposal,
            "expect": expect,
        }
        return ProposedScenario(_yaml(scenario), self._suite.file, loosens=direction is Direction.LOOSENS)


def _edits(sent: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Edit]:
    """Return how to change arguments and session of the request `sent`, so that it becomes the request `wanted`."""
    properties, context = ("subject", "properties"), ("context",)
    arguments = (*context, _ARGUMENTS)
    places: list[tuple[JsonPath, JsonPath]] = [(("subject", "id"), ("claims", "sub"))]
    places += [
        ((*arguments, name), (_ARGUMENTS, name))
        for name in as_dict(at(sent, arguments)) | as_dict(at(wanted, arguments))
    ]
    places += [((*properties, name), ("claims", name)) for name in _CLAIMS]
    places += [((*context, name), (name,)) for name in _FIELDS]
    scopes = [as_list(at(request, (*properties, "scopes"))) for request in (sent, wanted)]
    changed = [(("claims", "emts", name), name in scopes[1] or GONE) for name in sorted({*scopes[0]} ^ {*scopes[1]})]
    differing = [(to, at(wanted, path)) for path, to in places if at(sent, path) != at(wanted, path)]
    return [*differing, *changed]


def _plain_numbers(value: Any) -> list[int]:
    return [ceil(value), floor(value)] if isinstance(value, float) else []


def _shown(value: Any) -> str:
    return "missing" if value is GONE else canonical(value).decode()[:_SHOWN].strip('"')


def _yaml(scenario: dict[str, Any]) -> str:
    """Return a YAML list with one scenario, on one line."""
    text = yaml.dump(
        thawed(scenario), Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=True, width=_ONE_LINE
    )
    return f"- {text.strip()}"


class _Plain(yaml.SafeDumper):
    """A YAML dumper without aliases, because aliases are hard to read."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
