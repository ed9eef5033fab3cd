"""Search a scenario that kills a survivor: first among the recorded requests, then among generated calls."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
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
from pdp.opa.tool import OpaTool
from pdp.workbench.diff.comparison import ComparedCall, Comparison, Difference
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant, Mutant, ProposedScenario, RegoMutant
from pdp.workbench.mutation.trial import Recorded
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.runs import FLOW
from pdp.workbench.neighbours.values import at
from pdp.workbench.scenarios.files.scenario import Expect
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.running.engines import bundle_of
from pdp.workbench.scenarios.running.expectation import Happened, actual, has_fields
from pdp.workbench.scenarios.running.scenario_run import replaced_texts

_MOST: Final = 4000
"""The maximum number of generated calls. Calls that vary attributes of a changed rule come first."""

_WIDTH: Final = 110
_DECIDED: Final = Expect(verdict=None, codes=(), obligations=())
"""An expectation with the fields of a decision that a proposed scenario expects."""


def propose_scenario(
    mutant: RegoMutant | ManifestMutant | DataMutant, recorded: Sequence[Recorded], opa: Path
) -> ProposedScenario:
    """Search a scenario that kills a mutant. `recorded` are suites with the policy, manifest or data to change."""
    pair = BundlePair.of(opa, *_bundles(mutant, recorded, opa))
    steps = (step for ran in recorded for result in ran.results for step in result.steps)
    answers = {answer.body: answer.decision.verdict for step in steps for answer in step.answers}
    requests = {pair.manifests.requests(orjson.loads(body)): verdict for body, verdict in answers.items()}
    known = [ComparedCall("", old, new) for old, new in requests]
    allowed = [orjson.loads(new) for (_, new), verdict in requests.items() if verdict is Verdict.ALLOW]
    # Engines with additional corpora and documents, which no suite has, help to generate the calls. Other engines, with
    # the data of the suites, compare the decisions and compute the expectation.
    generated = GeneratedCalls(pair)
    with generated.comparison, Comparison(*pair.bundles) as comparison:
        near = takewhile(lambda call: call.known_tool, generated.calls(_MOST, allowed=allowed, solved=False))
        with closing(comparison.differences(chain(known, near))) as differences:
            for difference in differences:
                expect = _expectation(difference)
                # A raw request contains the state of its run, so it cannot show a changed label; only a scenario with
                # earlier reads can.
                runs = (at(orjson.loads(body), FLOW) for body in (difference.call.old, difference.call.new))
                if expect is not None and next(runs) == next(runs):
                    loosens = difference.change.direction is Direction.LOOSENS
                    return _for_request(mutant, orjson.loads(difference.call.old), expect, recorded, loosens=loosens)
    note = f"no difference in {len(known)} recorded and {generated.extent.requests} generated requests"
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
    """Return the suites' bundle with their data and manifests. If one entry is mutated, other entries are left out."""
    bundle = bundle_of(suites[0])
    documents = {suite.manifest.digest: suite.manifest.document for suite in suites}
    if isinstance(mutant, ManifestMutant) and mutant.tool is not None:
        documents = {
            digest: {**document, "tools": {mutant.tool: document["tools"][mutant.tool]}}
            for digest, document in documents.items()
        }
    return replace(bundle, data={**merged_data(bundle.data, data=suites[0].data), "manifests": documents})


def _expectation(difference: Difference) -> dict[str, Any] | None:
    """Return the original decision as an expectation; None if no expectation can show the difference."""
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
    """Return a scenario for a request, as a YAML list with one item. Digest and version are placeholders."""
    tool = tool_of(request)
    suite = next((ran.suite for ran in recorded if tool in ran.suite.manifest.tools), recorded[0].suite)
    names = {suite.manifest.digest: "$manifest_digest", suite.manifest.version: "$manifest_version"}
    scenario = {
        "name": f"kills {mutant.id}",
        "why": f"detects {mutant.kind} in {mutant.owner} ({mutant.place.file}:{mutant.place.line})",
        "request": replaced_texts(request, names),
        "expect": expect,
    }
    text = yaml.dump(
        thawed([scenario]), Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return ProposedScenario(str(text).rstrip("\n"), suite.file, loosens=loosens)


class _Plain(yaml.SafeDumper):
    """A YAML dumper without aliases, because aliases are hard to read."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
