"""The search for a proposal that the enforcement point treats differently by a changed entry, before any policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import ValidationError

from pdp.pep import Pep
from pdp.session import Session
from pdp.workbench.mutation.perturbing import GONE
from pdp.workbench.mutation.proposal import Proposal, proposal_scenario
from pdp.workbench.mutation.telling import plain_reasons, told_of_reasons
from pdp.workbench.scenarios.files.sessions import DEFAULT_TIME, laid_over

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pdp.engine.protocol import Engine
    from pdp.evaluation import Evaluation
    from pdp.manifest.model import Tool
    from pdp.workbench.mutation.mutant import ManifestMutant
    from pdp.workbench.mutation.recorded import Recorded

_BASES: Final = 6
_TRACED: Final = ("in_manifest", "schema_valid", "risk_tier", "pdp_action", "idempotency_missing")
_OTHERS: Final[tuple[Any, ...]] = (
    None,
    "",
    "another",
    "x" * 5000,
    0,
    -1,
    0.5,
    1e9,
    True,
    [],
    ["another", "another"],
    {},
)


@dataclass(frozen=True, slots=True)
class _Base:
    """A proposal of a scenario, with the session that it has: as the scenario lays it over the file's, and whole."""

    file: Path
    proposal: dict[str, Any]
    layers: dict[str, Any]
    below: dict[str, Any]


def search_proposals(recorded: Sequence[Recorded], mutant: ManifestMutant, engine: Engine) -> Proposal | None:
    """Return a proposal near a scenario's own that shows the difference, with what the original makes of it."""
    if mutant.tool is None:
        return None
    manifest = recorded[0].suite.manifest
    original, other = Pep(manifest, engine), Pep(mutant.manifest, engine)
    for base in _bases(recorded, mutant.tool):
        for proposal, layers in _near(base, manifest.tools[mutant.tool]):
            try:
                session = Session.model_validate({"time": DEFAULT_TIME, **laid_over(base.below, layers)})
            except ValidationError:
                continue
            one, two = (_outcome(pep.decide(proposal, session)) for pep in (original, other))
            expect = _told(one, two)
            if expect is not None:
                return Proposal(proposal_scenario(mutant, proposal, layers, expect), base.file)
    return None


def _bases(recorded: Sequence[Recorded], tool: str) -> list[_Base]:
    found = []
    for each in recorded:
        for scenario in each.suite.scenarios:
            step = scenario.steps[0]
            if step.action == "propose" and isinstance(step.propose, dict) and _named(step.propose) == tool:
                layers = _merged(scenario.session, step.session)
                found.append(_Base(each.suite.file, step.propose, layers, each.suite.model.session))
    # Calls that get far come first: what is refused anyway shows little.
    return found[:_BASES]


def _near(base: _Base, tool: Tool) -> Iterator[tuple[Any, dict[str, Any]]]:
    yield base.proposal, base.layers
    key = "payload" if "payload" in base.proposal else "arguments"
    arguments = base.proposal.get(key)
    if isinstance(arguments, dict):
        for changed in _arguments(arguments, tool.schema_):
            yield base.proposal | {key: changed}, base.layers
    for name in ("idempotency_key", "purpose"):
        yield base.proposal, base.layers | {name: None}
        yield base.proposal, base.layers | {name: "another"}
    facts = laid_over(base.below, base.layers).get("facts")
    for name, fact in (facts or {}).items():
        for value in (None, [] if isinstance(fact, list) else "another", ["another"]):
            yield base.proposal, _merged(base.layers, {"facts": {name: value}})


def _arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    properties = schema.get("properties") or {}
    for name in {**arguments, **properties}:
        if name in arguments:
            yield {key: value for key, value in arguments.items() if key != name}
        inner = properties.get(name)
        for value in (*_beyond(inner), *_OTHERS):
            if arguments.get(name, GONE) != value:
                yield arguments | {name: value}
        if isinstance(arguments.get(name), dict) and isinstance(inner, dict):
            yield from ({**arguments, name: changed} for changed in _arguments(arguments[name], inner))
    yield arguments | {"another": "x"}


def _beyond(schema: Any) -> Iterator[Any]:
    """Values just outside of a schema's bounds, and on them."""
    if not isinstance(schema, dict):
        return
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        bound = schema.get(word)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            yield from (bound - 1, bound, bound + 1, bound / 2)
    for word in ("minLength", "maxLength"):
        length = schema.get(word)
        if isinstance(length, int):
            yield from ("x" * max(length + by, 0) for by in (-1, 0, 1))
    for word in ("minItems", "maxItems"):
        length = schema.get(word)
        if isinstance(length, int):
            yield from (["x"] * max(length + by, 0) for by in (-1, 0, 1))


def _outcome(evaluation: Evaluation) -> dict[str, Any]:
    rejection = evaluation.outcome.rejection
    found: dict[str, Any] = {
        "status": evaluation.outcome.status,
        "rejection": rejection.code if rejection else None,
        "verdict": evaluation.verdict,
    }
    if evaluation.decision is not None:
        found["codes"] = list(evaluation.decision.codes)
        found["reasons"] = plain_reasons(evaluation.decision.reasons)
        found["obligations"] = [{"id": each.id, "parameters": each.parameters} for each in evaluation.obligations]
    found["trace"] = {name: getattr(evaluation.trace, name) for name in _TRACED}
    plain: dict[str, Any] = orjson.loads(orjson.dumps(found))
    return plain


def _told(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any] | None:
    """What to expect of the original that its mutant does not come to; None when there is nothing."""
    traced = {name: value for name, value in one["trace"].items() if two["trace"][name] != value}
    plain, other = ({name: each[name] for name in each if name not in {"trace", "reasons"}} for each in (one, two))
    if traced:
        return {**plain, "trace": traced}
    if plain != other:
        return plain
    more = told_of_reasons(one.get("reasons", ()), two.get("reasons", ()))
    return {"verdict": one["verdict"], **more} if more else None


def _named(proposal: dict[str, Any]) -> Any:
    return proposal.get("tool", proposal.get("tool_name"))


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One layer of two; unlike `laid_over` it keeps null, which takes away what stands beneath."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
