"""`pdp policies`: the baseline's Rego, for `opa test` and editors."""

from __future__ import annotations

from pdp.cli import Exit
from pdp.cli.output import tell
from pdp.workbench.opa.modules import baseline_policies_path


def path() -> int:
    """Print the path of the folder with the baseline's policies.

    Raises:
        UsageError: it is not there.
    """
    tell(str(baseline_policies_path()))
    return Exit.OK
