"""The search for a scenario that would notice a survivor: among recorded requests, then among the diff's calls."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from pdp.decision import Verdict
from pdp.engine.bundle.file import Bundle
from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.json import thawed
from pdp.manifest.diff import Direction
from pdp.workbench.diff.comparison import ComparedCall, Comparison, Difference
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant, Mutant, RegoMutant
from pdp.workbench.mutation.trial import Recorded
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.runs import FLOW
from pdp.workbench.neighbours.values import at
from pdp.workbench.opa.tool import OpaTool
from pdp.workbench.scenarios.files.scenario import Expect
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.running.engines import bundle_of
from pdp.workbench.scenarios.running.expectation import Happened, actual, has_fields
from pdp.workbench.scenarios.running.scenario_run import replaced_texts

_MOST: Final = 4000
"""How many calls are generated at most; what a changed rule reads comes first."""

_WIDTH: Final = 110
_DECIDED: Final = Expect(verdict=None, codes=(), obligations=())
"""What an expectation names of a decision."""


@dataclass(frozen=True, slots=True)
class ProposedScenario:
    """The result of a search for a difference.

    Attributes:
        scenario: YAML, a list of one scenario; None when no call shows the difference.
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
    """Search for a request that a mutant decides differently, and write the scenario that expects today's decision.

    The recorded ones come first, then those that the diff generates for tools of these manifests. `recorded` are suites
    that share what it changes.
    """
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
    """Write a list of one scenario as YAML; the manifest's digest and version are left to the harness."""
    tool = tool_of(request)
    suite = next((ran.suite for ran in recorded if tool in ran.suite.manifest.tools), recorded[0].suite)
    names = {suite.manifest.digest: "$manifest_digest", suite.manifest.version: "$manifest_version"}
    scenario = {
        "name": f"kills {mutant.id}",
        "why": f"{mutant.kind} in {mutant.owner} ({mutant.place.file}:{mutant.place.line}) must be noticed",
        "request": replaced_texts(request, names),
        "expect": expect,
    }
    text = yaml.dump(
        thawed([scenario]), Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return ProposedScenario(str(text).rstrip("\n"), suite.file, loosens=loosens)


class _Plain(yaml.SafeDumper):
    """YAML without aliases, which would hide what stands where."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
