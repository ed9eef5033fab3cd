"""Search a scenario that kills a survivor: first among the recorded requests, then among generated calls."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Final

import orjson

from pdp.decision import Verdict
from pdp.engine.bundle.file import Bundle
from pdp.engine.data import merged_data
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.opa.tool import OpaTool
from pdp.workbench.diff.comparison import ComparedCall, Comparison
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant, Mutant, ProposedScenario, RegoMutant
from pdp.workbench.mutation.trial import Recorded
from pdp.workbench.mutation.written import CallWriter
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.scenarios.files.suite import Suite, policy_modules
from pdp.workbench.scenarios.running.engines import bundle_of

_MOST: Final = 4000
"""The maximum number of generated calls. Calls that vary attributes of a changed rule come first."""

_MOST_FOUND: Final = 20
"""The maximum number of differing calls of which one should be a call that a scenario can propose."""


def propose_scenario(
    mutant: RegoMutant | ManifestMutant | DataMutant, recorded: Sequence[Recorded], opa: Path, *, solved: bool = False
) -> ProposedScenario:
    """Search a scenario that kills a mutant. `recorded` are suites with the policy, manifest or data to change.

    With `solved`, OPA computes the conditions of the changed rule, which takes seconds.
    """
    pair = BundlePair.of(opa, *_bundles(mutant, recorded, opa))
    steps = (step for ran in recorded for result in ran.results for step in result.steps)
    answers = {answer.body: answer.decision.verdict for step in steps for answer in step.answers}
    requests = {pair.manifests.requests(orjson.loads(body)): verdict for body, verdict in answers.items()}
    known = [ComparedCall("", old, new) for old, new in requests]
    allowed = [orjson.loads(new) for (_, new), verdict in requests.items() if verdict is Verdict.ALLOW]
    # Engines with additional corpora and documents, which no suite has, help to generate the calls. Other engines, with
    # the data of the suites, compare the decisions and compute the expectation.
    generated = GeneratedCalls(pair)
    other = 0
    with generated.comparison, Comparison(*pair.bundles) as comparison:
        near = takewhile(lambda call: call.known_tool, generated.calls(_MOST, allowed=allowed, solved=solved))
        with closing(comparison.differences(chain(known, near))) as differences:
            for difference in islice(differences, _MOST_FOUND):
                request = orjson.loads(difference.call.old)
                ran = _with_tool(tool_of(request), recorded)
                suite = ran.suite
                changed = suite.manifest if isinstance(mutant, RegoMutant) else mutant.applied(suite).manifest
                proposed = CallWriter(ran, (suite.manifest, changed), comparison.engines).written(request)
                if proposed is not None:
                    return proposed
                other += 1
    which = f"no scenario can propose one of {other} different calls" if other else "no difference"
    note = f"{which} in {len(known)} recorded and {generated.extent.requests} generated requests"
    return ProposedScenario(None, None, note)


def _with_tool(tool: str | None, recorded: Sequence[Recorded]) -> Recorded:
    """Return the suite with the most scenarios among those that have the tool."""
    having = [ran for ran in recorded if tool in ran.suite.manifest.tools]
    return max(having, key=lambda ran: len(ran.results), default=recorded[0])


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
