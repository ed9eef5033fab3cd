"""The search for a call that a survivor treats differently, near the calls of scenarios, and the scenario for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any, Final

import orjson
import yaml
from pydantic import ValidationError

from pdp.decision import Verdict, parse_decision
from pdp.errors import AnswerInvalidError
from pdp.json import JsonValueError, canonical
from pdp.pep import Pep
from pdp.session import Session
from pdp.workbench.mutation.mutant import ManifestMutant
from pdp.workbench.mutation.trial import answer_table
from pdp.workbench.neighbours.bases import tool_of
from pdp.workbench.neighbours.entries import document_digest, entry_variants
from pdp.workbench.neighbours.proposals import near_arguments
from pdp.workbench.neighbours.values import at, edited
from pdp.workbench.neighbours.variants import changes, pairs
from pdp.workbench.neighbours.vocabulary import Policy, vocabulary
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.syntax import parse_modules
from pdp.workbench.scenarios.files.sessions import DEFAULT_TIME, laid_over
from pdp.workbench.scenarios.files.suite import policy_modules
from pdp.workbench.scenarios.running.engines import open_engine
from pdp.workbench.scenarios.running.expectation import has_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.decision import Decision, Obligation
    from pdp.evaluation import Evaluation
    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool
    from pdp.workbench.mutation.mutant import DataMutant, Mutant, RegoMutant
    from pdp.workbench.mutation.trial import Recorded, RegoTrial
    from pdp.workbench.neighbours.vocabulary import Vocabulary
    from pdp.workbench.scenarios.files.suite import Suite

    Outcome = dict[str, Any]
    """What an expectation can name: verdict, codes, obligations; `reasons` are `[code, message, details]`.

    Of an evaluation also status, rejection and `trace`.
    """

    Ask = Callable[[Sequence[bytes]], list[tuple[Outcome, Outcome]]]
    """Decides requests, by the original and by the mutant."""

_DIGEST: Final = ("action", "properties", "manifest_digest")
_BASES: Final = 16
_SINGLES: Final = 4000
_PAIRS: Final = 1200
_BATCH: Final = 700
_ENTRY_BASES: Final = 6
_PROPOSAL_BASES: Final = 6
_PARTS: Final = ("reasons", "trace")
_WIDTH: Final = 110
_TRACED: Final = ("in_manifest", "schema_valid", "risk_tier", "pdp_action", "idempotency_missing")


@dataclass(frozen=True, slots=True)
class ProposedScenario:
    """The result of a search for a difference.

    Attributes:
        scenario: YAML, a list of one scenario; None when no request shows the difference.
        file: the scenario file that it belongs in.
        note: what the difference needs beside the scenario, or what was searched in vain.
    """

    scenario: str | None
    file: Path | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Witness:
    """A request that shows the difference, what to expect of it, and the changed entry that it needs, if any."""

    request: Any
    expect: dict[str, Any]
    entry: str | None = None


def propose_for_rego(trial: RegoTrial, mutant: RegoMutant) -> ProposedScenario:
    """Search for a request that a module and its mutant decide differently."""
    trees = parse_modules(trial.opa, trial.modules)
    broken = parse_modules(trial.opa, {mutant.module: replace(trial.modules[mutant.module], text=mutant.text)})
    words = vocabulary(Policy(trees, trial.data), Policy({**trees, **broken}, trial.data))
    concern = mutant.package.rpartition(".")[2]
    bodies = _bases(trial.recorded, lambda codes: any(code.startswith(f"{concern}.") for code in codes))
    witness, tried = _near_requests(bodies, words, trial.data, partial(_decided_by_opa, trial.evaluator, mutant))
    if witness is not None:
        return _proposal(mutant, witness, trial.recorded)
    entries, documents = _near_entries(bodies, trial.data["manifests"])
    if entries:
        data = {**trial.data, "manifests": {**trial.data["manifests"], **documents}}
        texts = {path: module.text for path, module in trial.modules.items()}
        with Evaluator(trial.opa, texts, data) as evaluator:
            witness = _smallest(list(entries), _decided_by_opa(evaluator, mutant, list(entries)))
        if witness is not None:
            changed = replace(witness, entry=entries[canonical(witness.request)])
            return _proposal(mutant, changed, trial.recorded)
    return _nothing(tried, len(entries))


def _decided_by_opa(evaluator: Evaluator, mutant: RegoMutant, bodies: Sequence[bytes]) -> list[tuple[Outcome, Outcome]]:
    """Decide requests by the original and by a mutant; where a mutant was not asked, both are the original's."""
    original = [_outcome_of_answer(answer) for answer in evaluator.evaluate(bodies).answers]
    broken = answer_table(bodies, evaluator.evaluate(bodies, changed={mutant.module: mutant.text}))
    return [
        (before, _outcome_of_answer(broken[body]) if body in broken else before)
        for body, before in zip(bodies, original, strict=True)
    ]


def propose_for_embedded(
    recorded: Sequence[Recorded], mutant: ManifestMutant | DataMutant, opa: Path | None
) -> ProposedScenario:
    """Search for a proposal or a request that an entry, or data, and its mutant treat differently."""
    first = recorded[0].suite
    changed = mutant.applied(first)
    tool = mutant.tool if isinstance(mutant, ManifestMutant) else None
    with open_engine(first, "embedded") as original, open_engine(changed, "embedded") as broken:
        if tool is not None:
            peps = Pep(first.manifest, original), Pep(changed.manifest, broken)
            proposal = _near_proposals(recorded, mutant, tool, *peps)
            if proposal is not None:
                return proposal

        def ask(batch: Sequence[bytes]) -> list[tuple[Outcome, Outcome]]:
            return [
                (_outcome_of(original.decide_body(body)), _outcome_of(broken.decide_body(_for(body, changed.manifest))))
                for body in batch
            ]

        bodies = [_for(body, first.manifest) for body in _bases(recorded, lambda codes: not codes)]
        bodies = [body for body in bodies if tool in (None, tool_of(orjson.loads(body)))]
        if not bodies:
            return ProposedScenario(None, None, "no scenario calls this tool: write one first")
        trees = {} if opa is None else parse_modules(opa, policy_modules(first))
        before, after = (
            Policy(trees, {**suite.data, "manifests": suite.manifest.document["tools"].get(tool, {})})
            for suite in (first, changed)
        )
        witness, tried = _near_requests(bodies, vocabulary(before, after), first.data, ask)
    return _nothing(tried, 0) if witness is None else _proposal(mutant, witness, recorded)


def _near_requests(
    bodies: Sequence[bytes], words: Vocabulary, data: Mapping[str, Any], ask: Ask
) -> tuple[_Witness | None, int]:
    """Search the recorded requests and then those near them; return also how many were tried."""
    asked = 0
    seen: set[bytes] = set()
    candidates = _fresh(_candidates(bodies, words, data), seen)
    while batch := list(islice(candidates, _BATCH)):
        asked += len(batch)
        witness = _smallest(batch, ask(batch))
        if witness is not None:
            return witness, asked
    return None, asked


def _candidates(bodies: Sequence[bytes], words: Vocabulary, data: Mapping[str, Any]) -> Iterator[bytes]:
    """Of each base in turn, so that none of them takes the whole search."""
    yield from bodies
    bases = [base for body in bodies[:_BASES] if isinstance(base := orjson.loads(body), dict)]
    directory = data.get("directory")
    singles = [changes(base, words, directory if isinstance(directory, dict) else None) for base in bases]
    turns = ((base, (one,)) for turn in zip_longest(*singles) for base, one in zip(bases, turn, strict=True) if one)
    several = zip_longest(*map(pairs, singles))
    both = ((base, pair) for turn in several for base, pair in zip(bases, turn, strict=True) if pair)
    for base, applied in chain(islice(turns, _SINGLES), islice(both, _PAIRS)):
        try:
            yield canonical(edited(base, *(edit for one in applied for edit in one.edits)))
        except JsonValueError:
            continue


def _near_entries(bodies: Sequence[bytes], manifests: Mapping[str, Any]) -> tuple[dict[bytes, str], dict[str, Any]]:
    """Requests for changed entries, each with what was changed; and their manifests by digest."""
    documents: dict[str, Any] = {}
    asked: dict[bytes, str] = {}
    for request in map(orjson.loads, bodies[:_ENTRY_BASES]):
        tool, stated = tool_of(request), at(request, _DIGEST)
        document = manifests.get(stated) if isinstance(stated, str) else None
        if document is None or tool not in document["tools"]:
            continue
        for words, entry in entry_variants(document["tools"][tool]):
            other = {**document, "tools": {tool: entry}}
            name = document_digest(other)
            documents[name] = other
            asked[canonical(edited(request, (_DIGEST, name)))] = f"{tool}: {words}"
    return asked, documents


def _smallest(batch: Sequence[bytes], outcomes: Sequence[tuple[Outcome, Outcome]]) -> _Witness | None:
    differing = [
        (len(body), body, expect)
        for body, (original, mutant) in zip(batch, outcomes, strict=True)
        if original != mutant and (expect := _expectation(original, mutant)) is not None
    ]
    if not differing:
        return None
    # A code that differs says more than a detail.
    _, body, expect = min(differing, key=lambda each: ("obligations" not in each[2], *each[:2]))
    return _Witness(orjson.loads(body), expect)


def _fresh(candidates: Iterable[bytes], seen: set[bytes]) -> Iterator[bytes]:
    for body in candidates:
        if body not in seen:
            seen.add(body)
            yield body


def _bases(recorded: Iterable[Recorded], near: Callable[[Sequence[str]], bool]) -> list[bytes]:
    """Every recorded request once: the first of each tool and codes, then the second of each.

    In turn one whose codes speak of what is searched (`near`), and another one, ALLOW before others.
    """
    kinds: dict[tuple[Any, ...], dict[bytes, None]] = {}
    for suite in recorded:
        for answer in (answer for result in suite.results for step in result.steps for answer in step.answers):
            codes, refused = answer.decision.codes, answer.decision.verdict is not Verdict.ALLOW
            kind = near(codes), refused, tool_of(orjson.loads(answer.body)), codes
            kinds.setdefault(kind, {})[answer.body] = None
    turns: dict[bool, list[tuple[int, bool, bytes]]] = {True: [], False: []}
    for (is_near, refused, *_), bodies in kinds.items():
        turns[is_near] += [(turn, refused, body) for turn, body in enumerate(bodies)]
    mixed = zip_longest(*(sorted(each, key=lambda turn: turn[:2]) for each in turns.values()))
    return list(dict.fromkeys(turn[2] for pair in mixed for turn in pair if turn is not None))


def _for(body: bytes, manifest: EffectiveManifest) -> bytes:
    """The request as it would be made under another manifest of the same tools."""
    request = orjson.loads(body)
    if not isinstance(at(request, _DIGEST), str):
        return body
    return canonical(edited(request, (_DIGEST, manifest.digest)))


def _nothing(requests: int, entries: int) -> ProposedScenario:
    return ProposedScenario(
        None,
        None,
        f"no difference in {requests} requests near the recorded ones (attributes missing, null, empty, mistyped, "
        f"exchanged, beside constants and limits, one or two at once) and {entries} changed entries",
    )


def _proposal(mutant: Mutant, witness: _Witness, recorded: Sequence[Recorded]) -> ProposedScenario:
    """Write the scenario; the manifest's digest and version are left to the harness."""
    tool = tool_of(witness.request)
    suite = next((each.suite for each in recorded if tool in each.suite.manifest.tools), recorded[0].suite)
    manifest = suite.manifest
    note = None if witness.entry is None else f"needs a manifest with another entry: {witness.entry}"
    names = {manifest.digest: "$manifest_digest", manifest.version: "$manifest_version"}
    return ProposedScenario(
        _scenario_text(mutant, {"request": _named(witness.request, names)}, witness.expect), suite.file, note
    )


def _near_proposals(
    recorded: Sequence[Recorded], mutant: Mutant, tool: str, original: Pep, broken: Pep
) -> ProposedScenario | None:
    """Search for a proposal that the enforcement point treats differently by the changed entry, before any policy."""
    for suite, base, base_layers in islice(_proposed(recorded, tool), _PROPOSAL_BASES):
        below = suite.session
        for proposal, layers in _near_proposal(base, base_layers, below, suite.manifest.tools[tool]):
            try:
                session = Session.model_validate({"time": DEFAULT_TIME, **laid_over(below, layers)})
            except ValidationError:
                continue
            expect = _expectation(*(_treated(pep.decide(proposal, session)) for pep in (original, broken)))
            if expect is not None:
                step = {**({"session": layers} if layers else {}), "propose": proposal}
                return ProposedScenario(_scenario_text(mutant, step, expect), suite.file)
    return None


def _proposed(recorded: Sequence[Recorded], tool: str) -> Iterator[tuple[Suite, dict[str, Any], dict[str, Any]]]:
    """Yield proposals of a tool, each with its suite and with what its scenario lays over the suite's session."""
    for suite in (each.suite for each in recorded):
        for scenario in suite.scenarios:
            step = scenario.steps[0]
            proposal = step.propose if step.action == "propose" and isinstance(step.propose, dict) else {}
            if proposal.get("tool", proposal.get("tool_name")) == tool:
                yield suite, proposal, _merged(scenario.session, step.session)


def _near_proposal(
    proposal: dict[str, Any], layers: dict[str, Any], below: dict[str, Any], tool: Tool
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    yield proposal, layers
    key = "payload" if "payload" in proposal else "arguments"
    arguments = proposal.get(key)
    if isinstance(arguments, dict):
        for changed in near_arguments(arguments, tool.schema_):
            yield proposal | {key: changed}, layers
    for name in ("idempotency_key", "purpose"):
        yield proposal, layers | {name: None}
        yield proposal, layers | {name: "another"}
    for name, fact in (laid_over(below, layers).get("facts") or {}).items():
        for value in (None, [] if isinstance(fact, list) else "another", ["another"]):
            yield proposal, _merged(layers, {"facts": {name: value}})


def _treated(evaluation: Evaluation) -> Outcome:
    """What an expectation can name of an evaluation."""
    rejection = evaluation.outcome.rejection
    treated: dict[str, Any] = {
        "status": evaluation.outcome.status,
        "rejection": rejection.code if rejection else None,
        "verdict": evaluation.verdict,
        "trace": {name: getattr(evaluation.trace, name) for name in _TRACED},
    }
    if evaluation.decision is not None:
        treated |= _outcome_of(evaluation.decision)
        treated["obligations"] = _obligations_of(evaluation.obligations)
    plain: Outcome = orjson.loads(orjson.dumps(treated))
    return plain


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One layer of two; unlike `laid_over` it keeps null, which takes away what stands beneath."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


class _Plain(yaml.SafeDumper):
    """YAML without aliases, which would hide what stands where."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def _outcome_of(decision: Decision) -> Outcome:
    """Return what an expectation can name of a decision."""
    return {
        "verdict": decision.verdict.value,
        "codes": list(decision.codes),
        "obligations": _obligations_of(decision.obligations),
        "reasons": [[reason.code, reason.message, reason.details] for reason in decision.reasons],
    }


def _outcome_of_answer(answer: bytes | None) -> Outcome:
    """Return what an expectation can name of an engine's answer; None stands for an evaluation that failed."""
    try:
        if answer is not None:
            return _outcome_of(parse_decision(answer))
        code = AnswerInvalidError.code
    except AnswerInvalidError as error:
        code = error.code
    return {"verdict": "DENY", "codes": [code], "obligations": [], "reasons": [[code, "", {}]]}


def _obligations_of(obligations: Iterable[Obligation]) -> list[dict[str, Any]]:
    """Return what an expectation can name of obligations."""
    return [{"id": obligation.id, "parameters": obligation.parameters} for obligation in obligations]


def _expectation(original: Outcome, mutant: Outcome) -> dict[str, Any] | None:
    """Return an expectation that holds for the original and not for the mutant; None when there is none.

    What reasons say is named only where all else is the same, and of the trace only what differs.
    """
    whole, other = ({key: value for key, value in each.items() if key not in _PARTS} for each in (original, mutant))
    trace = mutant.get("trace", {})
    traced = {name: value for name, value in original.get("trace", {}).items() if trace.get(name) != value}
    if traced or whole != other:
        return {**whole, **({"trace": traced} if traced else {})}
    more = _reasons_expectation(original.get("reasons", ()), mutant.get("reasons", ()))
    return {"verdict": original["verdict"], **more} if more else None


def _reasons_expectation(original: Sequence[Sequence[Any]], mutant: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return `details` and `messages` that hold for the original's reasons and not for the mutant's."""
    expect: dict[str, dict[str, Any]] = {}
    for code, message, details in original:
        rivals = [each for each in mutant if each[0] == code]
        if details and not any(has_fields(rival[2], details) for rival in rivals):
            expect.setdefault("details", {})[code] = details
        if message and all(rival[1] != message for rival in rivals):
            expect.setdefault("messages", {})[code] = message
    return expect


def _scenario_text(mutant: Mutant, step: Mapping[str, Any], expect: Mapping[str, Any]) -> str:
    """Return a list of one scenario as YAML."""
    scenario = {
        "name": f"kills {mutant.id}",
        "why": f"{mutant.kind} in {mutant.owner} ({mutant.place.file}:{mutant.place.line}) must be noticed",
        **step,
        "expect": dict(expect),
    }
    text = yaml.dump(
        [scenario], Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return str(text).rstrip("\n")


def _named(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with texts replaced by the names under which the harness fills them in, such as digests."""
    if isinstance(value, dict):
        return {key: _named(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value
