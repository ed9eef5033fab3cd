"""Which of the six contract clauses each tool meets, and what is missing (tool pattern library, 9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdp.documents import shown_name
from pdp.manifest.fields import READ_CLASSES, Clause, EffectClass, RiskTier
from pdp.manifest.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool


@dataclass(frozen=True, slots=True)
class ContractReport:
    """One tool and, for each clause, what it is missing; a clause that misses nothing is met."""

    tool: str
    missing: Mapping[Clause, tuple[str, ...]]

    @property
    def met(self) -> tuple[Clause, ...]:
        """The clauses that the tool meets."""
        return tuple(clause for clause, missing in self.missing.items() if not missing)


def lint(manifest: EffectiveManifest) -> tuple[ContractReport, ...]:
    """Return what each tool meets and misses, in the manifest's order."""
    pins = manifest.document.get("agents")
    pinned = None if pins is None else {name for tools in pins.values() for name in tools}
    return tuple(ContractReport(tool.name, missing(tool, pinned)) for tool in manifest.tools.values())


def clause_findings(
    tools: Iterable[Tool], clauses: Sequence[Clause], pinned: AbstractSet[str] | None, ontology: str | None
) -> Iterator[tuple[Tool, Finding]]:
    """Yield which of the clauses effective entries do not meet; `pinned`, `ontology`: what their manifest states."""
    lacking_of = ((tool, clause, items) for tool in tools for clause, items in missing(tool, pinned).items())
    for entry, clause, items in lacking_of:
        lacking = (*items, "`ontology` of its manifest") if clause is Clause.TYPED and ontology is None else items
        if lacking and clause in clauses:
            demand = f"{shown_name(entry.name)} is not {clause}, as the governance file demands"
            hint = "state it here or in the governance file"
            yield entry, Finding(("name",), f"{demand}: it has no {', no '.join(lacking)}", hint)


def missing(tool: Tool, pinned: AbstractSet[str] | None) -> dict[Clause, tuple[str, ...]]:
    """Return what an effective entry is missing of each clause.

    Audited is always met: the enforcement point records every dispatch of every tool, whatever the manifest says.

    Args:
        tool: the entry.
        pinned: the tools that some agent of the manifest pins; None: it has no `agents`.
    """
    return {
        Clause.TYPED: tuple(_typed(tool)),
        Clause.VERSIONED: tuple(_versioned(tool, pinned)),
        Clause.IDEMPOTENT: tuple(_idempotent(tool)),
        Clause.PERMISSIONED: tuple(_permissioned(tool)),
        Clause.AUDITED: (),
        Clause.EVAL_GATED: tuple(_eval_gated(tool)),
    }


# What may be anything does not load.
def _typed(tool: Tool) -> Iterator[str]:
    if tool.result_schema is None:
        yield "`result_schema`"
    if tool.ontology_pin is None:
        yield "`ontology_pin`"


def _versioned(tool: Tool, pinned: AbstractSet[str] | None) -> Iterator[str]:
    if tool.version is None:
        yield "`version`"
    if pinned is None:
        yield "`agents` that pin it"
    elif tool.name not in pinned:
        yield "an agent that pins it"


def _idempotent(tool: Tool) -> Iterator[str]:
    stated = tool.safety is not None and tool.safety.idempotent is True
    if not (tool.idempotency.required or tool.effect_class in READ_CLASSES or stated):
        yield "`idempotency`, or an effect class without side effects"


# A tool without effect class has no gate of 9.2: nothing says that its commits are staged.
def _permissioned(tool: Tool) -> Iterator[str]:
    if tool.effect_class is None:
        yield "`effect_class`"
    if not tool.scopes:
        yield "`scopes`"
    if tool.markings is None:
        yield "`markings`"
    if tool.purposes is None:
        yield "`purposes`"
    may_ask = tool.risk_tier is RiskTier.HIGH or tool.effect_class is EffectClass.COMMIT_HIGH or tool.limits
    if may_ask and not tool.approval.approvers:
        yield "`approval.approvers`: nobody could grant what it asks for"


def _eval_gated(tool: Tool) -> Iterator[str]:
    if tool.eval_pack is None:
        yield "`eval_pack`"
    if tool.release is None:
        yield "`release`"
