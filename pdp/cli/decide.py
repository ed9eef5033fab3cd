"""`pdp decide`: one proposal, one verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import orjson

from pdp.audit import FileAudit, MemoryAudit
from pdp.cli import Exit
from pdp.cli.engines import open_engine
from pdp.cli.files import read_proposal, read_session
from pdp.decision import Verdict
from pdp.manifest.loading import load_effective
from pdp.pep import Pep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.call import Evaluation


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
    """Decide the proposal, print the evaluation, and return the exit code that says the verdict."""
    effective = load_effective(manifest, governance)
    who = read_session(session)
    proposed = read_proposal(proposal)
    log = FileAudit(audit) if audit else MemoryAudit()
    manifests = {effective.digest: effective.document}
    try:
        with open_engine(engine, manifests, bundle=bundle, policies=policies, data=data, opa_url=opa_url) as opened:
            evaluation = Pep(effective, opened, audit=log).decide(proposed, who)
    finally:
        log.close()
    if as_json:
        sys.stdout.write(orjson.dumps(evaluation.as_json(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from pdp.cli.display import print_evaluation  # noqa: PLC0415

        print_evaluation(evaluation)
    return exit_code(evaluation)


def exit_code(evaluation: Evaluation) -> Exit:
    """Return the exit code for an evaluation; everything but ALLOW and STEP_UP is DENY."""
    if evaluation.allowed:
        return Exit.OK
    return Exit.STEP_UP if evaluation.verdict is Verdict.STEP_UP else Exit.DENY
