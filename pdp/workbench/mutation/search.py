"""The search for a scenario that would notice a survivor: near recorded proposals, then among the diff's calls."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import yaml

from pdp.decision import Verdict
from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.json import thawed
from pdp.manifest.diff import Direction
from pdp.pep import Pep
from pdp.workbench.diff.comparison import ComparedCall, Comparison
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.mutation.mutant import ManifestMutant, RegoMutant
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.proposals import near_arguments
from pdp.workbench.neighbours.runs import FLOW
from pdp.workbench.neighbours.values import at
from pdp.workbench.opa.tool import OpaTool
from pdp.workbench.scenarios.files.scenario import Expect, proposed_tool
from pdp.workbench.scenarios.files.suite import policy_modules
from pdp.workbench.scenarios.running.engines import bundle_of, open_suite_engine
from pdp.workbench.scenarios.running.expectation import Happened, actual, has_fields
from pdp.workbench.scenarios.running.scenario_run import replaced_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.engine.bundle.file import Bundle
    from pdp.evaluation import Evaluation
    from pdp.session import Session
    from pdp.workbench.diff.comparison import Difference
    from pdp.workbench.mutation.mutant import DataMutant, Mutant
    from pdp.workbench.mutation.trial import Recorded
    from pdp.workbench.scenarios.files.suite import Suite

_MOST: Final = 4000
"""How many calls are generated at most; what a changed rule reads comes first."""

_PROPOSALS: Final = 6
_WIDTH: Final = 110
_ADMITS: Final[dict[str | None, int]] = {Verdict.STEP_UP: 1, Verdict.ALLOW: 2}
_DECIDED: Final = Expect(verdict=None, codes=(), obligations=())
_TREATED: Final = Expect(
    status=None, rejection=None, verdict=None, codes=(), obligations=(),
    trace=dict.fromkeys(("schema_valid", "risk_tier", "idempotency_missing")),
)  # fmt: skip
"""What an expectation names of a decision, and of what became of a proposal."""


@dataclass(frozen=True, slots=True)
class ProposedScenario:
    """The result of a search for a difference.

    Attributes:
        scenario: YAML, a list of one scenario; None when no call shows the difference.
        file: the scenario file that it belongs in.
        note: what was searched in vain.
        loosens: whether the mutant admits more than the original, in the call of the scenario.
    """

    scenario: str | None
    file: Path | None
    note: str | None = None
    loosens: bool = False


def propose_scenario(
    mutant: RegoMutant | ManifestMutant | DataMutant, recorded: Sequence[Recorded], opa: Path
) -> ProposedScenario:
    """Search for a call that a mutant treats differently, and write the scenario that expects what is done today.

    `recorded` are suites that share what it changes.
    """
    found = _differing_proposal(mutant, recorded) if isinstance(mutant, ManifestMutant) else None
    return found or _differing_request(mutant, recorded, opa)


def _differing_proposal(mutant: ManifestMutant, recorded: Sequence[Recorded]) -> ProposedScenario | None:
    """Search for a proposal that the enforcement point treats differently by the changed entry, before any policy."""
    first = recorded[0].suite
    changed = mutant.applied(first)
    with open_suite_engine(first, "embedded") as original, open_suite_engine(changed, "embedded") as broken:
        peps = Pep(first.manifest, original), Pep(changed.manifest, broken)
        for suite, proposal, layer, session in islice(_proposals(recorded, mutant.tool), _PROPOSALS):
            for near, more in _near(proposal, suite.manifest.tools[mutant.owner].schema_):
                asked = session.model_copy(update=more)
                before, after = (_treated(pep.decide(near, asked)) for pep in peps)
                if before != after:
                    before["trace"] = dict(before["trace"].items() - after["trace"].items())
                    step = {"session": {**layer, **more}, "propose": near, "expect": _stated(before)}
                    loosens = _ADMITS.get(after["verdict"], 0) > _ADMITS.get(before["verdict"], 0)
                    return ProposedScenario(_scenario_text(mutant, _stated(step)), suite.file, loosens=loosens)
    return None


def _proposals(
    recorded: Sequence[Recorded], tool: str | None
) -> Iterator[tuple[Suite, dict[str, Any], dict[str, Any], Session]]:
    """Yield proposals of a tool whose step has no session of its own: suite, proposal, scenario's layer, session."""
    for suite in (ran.suite for ran in recorded):
        for scenario, sessions in zip(suite.scenarios, suite.sessions, strict=True):
            step, session = scenario.steps[0], sessions[0]
            proposal = step.propose if isinstance(step.propose, dict) and not (step.session or step.at) else {}
            if session is not None and tool is not None and proposed_tool(proposal) == tool:
                yield suite, proposal, scenario.session, session


def _near(proposal: dict[str, Any], schema: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield a proposal and those near it, each with what else its session has."""
    yield proposal, {}
    yield proposal, {"idempotency_key": None}
    key = "payload" if "payload" in proposal else "arguments"
    if isinstance(proposal.get(key), dict):
        yield from (({**proposal, key: arguments}, {}) for arguments in near_arguments(proposal[key], schema))


def _treated(evaluation: Evaluation) -> dict[str, Any]:
    """What an expectation can name of an evaluation; without codes where no policy was asked."""
    named = actual(_TREATED, Happened(evaluation, evaluation.decision))
    asked = evaluation.decision is not None
    return {name: value for name, value in named.items() if asked or name not in ("codes", "obligations")}


def _stated(mapping: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if value != {}}


def _differing_request(
    mutant: RegoMutant | ManifestMutant | DataMutant, recorded: Sequence[Recorded], opa: Path
) -> ProposedScenario:
    """Search the recorded requests, and then those that the diff generates for tools of these manifests."""
    pair = BundlePair.of(opa, *_bundles(mutant, recorded, opa))
    steps = (step for ran in recorded for result in ran.results for step in result.steps)
    answers = {answer.body: answer.decision.verdict for step in steps for answer in step.answers}
    asked = {pair.manifests.requests(orjson.loads(body)): verdict for body, verdict in answers.items()}
    known = [ComparedCall("", old, new) for old, new in asked]
    allowed = [orjson.loads(new) for (_, new), verdict in asked.items() if verdict is Verdict.ALLOW]
    # The generator's own engines have corpora and documents that no suite has: what is expected comes from others.
    generated = GeneratedCalls(pair)
    with generated.comparison, Comparison(*pair.bundles) as comparison:
        near = takewhile(lambda call: call.known_tool, generated.calls(_MOST, allowed=allowed, solved=False))
        with closing(comparison.differences(chain(known, near))) as differences:
            for difference in differences:
                expect = _expectation(difference)
                # A raw request states its run: what a label makes of one shows in steps that read first alone.
                runs = (at(orjson.loads(body), FLOW) for body in (difference.call.old, difference.call.new))
                if expect is not None and next(runs) == next(runs):
                    loosens = difference.change.direction is Direction.LOOSENS
                    return _for_request(mutant, orjson.loads(difference.call.old), expect, recorded, loosens=loosens)
    note = f"no difference in the {len(known)} recorded requests and {generated.extent.requests} near ones"
    return ProposedScenario(None, None, note)


def _bundles(
    mutant: RegoMutant | ManifestMutant | DataMutant, recorded: Sequence[Recorded], opa: Path
) -> tuple[Bundle, Bundle]:
    """What decides today, and what decides with the mutant."""
    suite = recorded[0].suite
    original = _with_manifests(mutant, [ran.suite for ran in recorded])
    if not isinstance(mutant, RegoMutant):
        return original, _with_manifests(mutant, [mutant.applied(suite)])
    modules = policy_modules(suite)
    modules[mutant.module] = replace(modules[mutant.module], text=mutant.text)
    with tempfile.TemporaryDirectory(prefix="pdp-mutant-") as folder:
        wasm = OpaTool(opa, Path(folder, "policies"), modules).compile([DECISION, FINDINGS, PLAN])
    return original, replace(original, wasm=wasm, modules={path: module.text for path, module in modules.items()})


def _with_manifests(mutant: Mutant, suites: Sequence[Suite]) -> Bundle:
    """The suites' bundle with their data and manifests; where an entry is changed, with that entry alone."""
    bundle = bundle_of(suites[0])
    documents = {suite.manifest.digest: suite.manifest.document for suite in suites}
    if isinstance(mutant, ManifestMutant) and mutant.tool is not None:
        documents = {
            digest: {**document, "tools": {mutant.tool: document["tools"][mutant.tool]}}
            for digest, document in documents.items()
        }
    return replace(bundle, data={**merged_data(bundle.data, data=suites[0].data), "manifests": documents})


def _expectation(difference: Difference) -> dict[str, Any] | None:
    """What the original decides; None when only details differ that no expectation can name."""
    before, after = (actual(_DECIDED, Happened(decision=decision)) for decision in (difference.old, difference.new))
    if before != after:
        return before
    details = {
        reason.code: reason.details
        for reason in difference.old.reasons
        if reason.code in difference.change.details
        and reason.details
        and not any(
            has_fields(other.details, reason.details) for other in difference.new.reasons if other.code == reason.code
        )
    }
    return {"verdict": before["verdict"], "details": details} if details else None


def _for_request(
    mutant: Mutant, request: Any, expect: dict[str, Any], recorded: Sequence[Recorded], *, loosens: bool
) -> ProposedScenario:
    """Write the scenario; the manifest's digest and version are left to the harness."""
    tool = tool_of(request)
    suite = next((ran.suite for ran in recorded if tool in ran.suite.manifest.tools), recorded[0].suite)
    names = {suite.manifest.digest: "$manifest_digest", suite.manifest.version: "$manifest_version"}
    scenario = _scenario_text(mutant, {"request": replaced_texts(request, names), "expect": expect})
    return ProposedScenario(scenario, suite.file, loosens=loosens)


class _Plain(yaml.SafeDumper):
    """YAML without aliases, which would hide what stands where."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def _scenario_text(mutant: Mutant, step: Mapping[str, Any]) -> str:
    """Return a list of one scenario as YAML."""
    scenario = {
        "name": f"kills {mutant.id}",
        "why": f"{mutant.kind} in {mutant.owner} ({mutant.place.file}:{mutant.place.line}) must be noticed",
        **step,
    }
    text = yaml.dump(
        thawed([scenario]), Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return str(text).rstrip("\n")
