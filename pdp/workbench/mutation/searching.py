"""A proposed scenario for each survivor: the search, with what decides it for each sort of mutant."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.workbench.mutation.contract_search import search_proposals
from pdp.workbench.mutation.perturbing import at, changed
from pdp.workbench.mutation.proposal import Proposal, request_scenario
from pdp.workbench.mutation.recorded import by_sort, tool_of
from pdp.workbench.mutation.telling import outcome_of
from pdp.workbench.mutation.vocabulary import vocabulary
from pdp.workbench.mutation.witness import DIGEST, Witness, search, search_entries
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.scenarios.running.engines import bundle_of, open_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant, Mutant, RegoMutant
    from pdp.workbench.mutation.recorded import Recorded
    from pdp.workbench.mutation.rego_trial import RegoTrial
    from pdp.workbench.mutation.telling import Outcome

# The same for all mutants of a module, so that the original has to decide the candidates only once.
_SEED: Final = 0


def propose_for_rego(trial: RegoTrial, mutant: RegoMutant) -> Proposal:
    """Search for a request that a module and its mutant decide differently."""
    texts = [trial.modules[mutant.module], *(text for path, text in trial.modules.items() if path != mutant.module)]
    words = vocabulary(texts, [each.suite.manifest.document for each in trial.recorded])
    bodies = trial.bodies_near(mutant.module)
    found = search(bodies, words, lambda batch: trial.outcomes(batch, mutant), seed=_SEED)
    if isinstance(found, Witness):
        return _proposal(mutant, found, trial.recorded)

    def ask(batch: Sequence[bytes], documents: dict[str, Any]) -> list[tuple[Outcome, Outcome]]:
        data = {**trial.data, "manifests": {**trial.data["manifests"], **documents}}
        with Evaluator(trial.opa, trial.modules, data) as evaluator:
            return trial.outcomes(batch, mutant, evaluator)

    entry = search_entries(bodies, trial.data["manifests"], ask)
    if isinstance(entry, Witness):
        return _proposal(mutant, entry, trial.recorded)
    return Proposal(None, None, str(replace(found, entries=entry)))


def propose_for_manifest(recorded: Sequence[Recorded], mutant: ManifestMutant) -> Proposal:
    """Search for a proposal or a request that an entry and its mutant treat differently."""
    first = recorded[0].suite
    manifests = {each.digest: each.document for each in (first.manifest, mutant.manifest)}
    with EmbeddedEngine(bundle_of(first), manifests=manifests, data=first.data) as engine:
        proposed = search_proposals(recorded, mutant, engine)
        if proposed is not None:
            return proposed

        def ask(batch: Sequence[bytes]) -> list[tuple[Outcome, Outcome]]:
            return [
                (outcome_of(engine.decide_body(body)), outcome_of(engine.decide_body(_for(body, mutant.manifest))))
                for body in batch
            ]

        bodies = [
            body for body in _bodies(recorded, first.manifest) if mutant.tool in (None, tool_of(orjson.loads(body)))
        ]
        words = vocabulary(bundle_of(first).modules.values(), [first.manifest.document["tools"].get(mutant.tool, {})])
        found = search(bodies, words, ask, seed=_SEED)
    if isinstance(found, Witness):
        return _proposal(mutant, found, recorded)
    return Proposal(None, None, str(found) if bodies else "no scenario calls this tool: write one first")


def propose_for_data(recorded: Sequence[Recorded], mutant: DataMutant) -> Proposal:
    """Search for a request that is decided differently with the changed data."""
    first = recorded[0].suite
    with open_engine(first, "embedded") as one, open_engine(replace(first, data=mutant.data), "embedded") as other:

        def ask(batch: Sequence[bytes]) -> list[tuple[Outcome, Outcome]]:
            return [(outcome_of(one.decide_body(body)), outcome_of(other.decide_body(body))) for body in batch]

        words = vocabulary((), [_near_change(first.data, mutant.data)])
        every = vocabulary(bundle_of(first).modules.values())
        words = replace(every, strings=words.strings, numbers=words.numbers)
        found = search(_bodies(recorded, first.manifest), words, ask, seed=_SEED)
    if isinstance(found, Witness):
        return _proposal(mutant, found, recorded)
    return Proposal(None, None, str(found))


def _proposal(mutant: Mutant, found: Witness, recorded: Sequence[Recorded]) -> Proposal:
    named = at(found.body, DIGEST)
    suite = next((each.suite for each in recorded if each.suite.manifest.digest == named), recorded[0].suite)
    manifest = suite.manifest
    text = request_scenario(mutant, found.body, manifest.digest, manifest.version, found.expect)
    if found.entry is not None:
        return Proposal(text, suite.file, f"it needs a manifest with a changed entry: {found.entry}")
    return Proposal(text, suite.file)


def _for(body: bytes, manifest: EffectiveManifest) -> bytes:
    return canonical(changed(orjson.loads(body), (DIGEST, manifest.digest)))


def _bodies(recorded: Sequence[Recorded], manifest: EffectiveManifest) -> list[bytes]:
    """The recorded requests that name this manifest: others are decided without looking at an entry."""
    bodies = by_sort(recorded, lambda _body, codes: codes != ("decision.request_invalid",))
    return [body for body in bodies if at(orjson.loads(body), DIGEST) == manifest.digest]


def _near_change(data: Any, other: Any) -> list[Any]:
    """The keys on the way to what differs, and what stands there on both sides."""
    if isinstance(data, dict) and isinstance(other, dict):
        for key, value in data.items():
            if key not in other:
                return [key, value]
            if other[key] != value:
                return [key, *_near_change(value, other[key])]
    return [data, other]
