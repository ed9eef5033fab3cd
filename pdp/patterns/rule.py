"""What a pattern's own rules are: something before a call runs, something on its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pdp.manifest.model import Tool
    from pdp.patterns.circumstances import Checked, Circumstances
    from pdp.patterns.run import Run
    from pdp.proposal import Execution


@dataclass(slots=True)
class PatternCall:
    """One call that is held to its pattern.

    Attributes:
        entry: its effective entry.
        arguments: as decided; nobody changes them.
        run: the run that it belongs to.
        about: what else is known of it.
        record_key: what a lookup is cached under: settled before it runs, since its source may change meanwhile.
    """

    entry: Tool
    arguments: dict[str, Any]
    run: Run
    about: Circumstances
    record_key: Any = None


class PatternRule:
    """The rules of one pattern beside its shape, which arguments and result have by then. Without state.

    `names_snapshots`: its results make snapshots known, where those of others only refer to them.
    """

    names_snapshots: ClassVar[bool] = False

    def before(self, call: PatternCall) -> Execution | None:  # noqa: ARG002 - of others
        """Return the answer when there is one already, None when the tool has to run.

        Raises:
            ToolError: it must not run so.
        """
        return None

    def after(self, call: PatternCall, checked: Checked) -> Checked:  # noqa: ARG002 - of others
        """Return the result with what the pattern adds; `checked.execution.result` is a copy that may be changed.

        Raises:
            ToolError: the result must not be delivered.
        """
        return checked
