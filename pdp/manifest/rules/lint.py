"""Which of the six contract clauses each tool meets, and what is missing (tool pattern library, 9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pdp.manifest.fields import READ_CLASSES, EffectClass, RiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool


class Clause(StrEnum):
    """The clauses of the universal contract, in the order of the document."""

    TYPED = "typed"
    VERSIONED = "versioned"
    IDEMPOTENT = "idempotent"
    PERMISSIONED = "permissioned"
    AUDITED = "audited"
    EVAL_GATED = "eval-gated"


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
    """Return what each tool meets and misses, in the manifest's order.

    Audited is always met: the enforcement point records every dispatch of every tool, whatever the manifest says.
    """
    pins = manifest.document.get("agents")
    pinned = None if pins is None else {name for tools in pins.values() for name in tools}
    return tuple(
        ContractReport(
            tool.name,
            {
                # What may be anything is no tool, and does not load.
                Clause.TYPED: ("`result_schema`",) if tool.result_schema is None else (),
                Clause.VERSIONED: tuple(_versioned(tool, pinned)),
                Clause.IDEMPOTENT: tuple(_idempotent(tool)),
                Clause.PERMISSIONED: tuple(_permissioned(tool)),
                Clause.AUDITED: (),
                Clause.EVAL_GATED: tuple(_eval_gated(tool)),
            },
        )
        for tool in manifest.tools.values()
    )


def _versioned(tool: Tool, pinned: set[str] | None) -> Iterator[str]:
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


def _permissioned(tool: Tool) -> Iterator[str]:
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
