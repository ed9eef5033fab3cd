"""`pdp decide`: one proposal, one verdict."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from pdp.cli import Exit
from pdp.cli.engines import open_engine
from pdp.cli.files import check_standard_input, open_audit, read_proposal, read_rules, read_session
from pdp.cli.output import print_json
from pdp.decision import Verdict
from pdp.pep import Pep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.evaluation import Evaluation


def decide(
    *,
    proposal: str,
    manifest: Path,
    session: Path,
    governance: Path | None,
    data: Sequence[Path],
    policies: Sequence[Path],
    bundle: Path | None,
    engine: str,
    opa_url: str | None,
    audit: Path | None,
    as_json: bool,
) -> int:
    """Decide the proposal, print the evaluation, and return the exit code that says the verdict.

    Raises:
        UsageError: options or files that cannot be used.
        BundleError: the bundle cannot be used.
        EngineError: a local OPA does not start. Once there is an engine, whatever it does wrong is a DENY.
    """
    check_standard_input(proposal, manifest, session, governance)
    effective = read_rules(manifest, governance)
    who = read_session(session)
    proposed = read_proposal(proposal)
    manifests = {effective.digest: effective.document}
    with (
        open_engine(engine, manifests, bundle=bundle, policies=policies, data=data, opa_url=opa_url) as opened,
        closing(open_audit(audit)) as log,
    ):
        evaluation = Pep(effective, opened, audit=log).decide(proposed, who)
    if as_json:
        print_json(evaluation.as_json())
    else:
        from pdp.cli.display import print_evaluation  # noqa: PLC0415

        print_evaluation(evaluation)
    return exit_code(evaluation)


def exit_code(evaluation: Evaluation) -> Exit:
    """Return the exit code for an evaluation; everything but ALLOW and STEP_UP is DENY."""
    if evaluation.allowed:
        return Exit.OK
    return Exit.STEP_UP if evaluation.verdict is Verdict.STEP_UP else Exit.DENY
