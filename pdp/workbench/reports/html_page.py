"""Pages of HTML that need nothing else: no network, no server, and no script but the page's own.

Names and values in a page come from scenarios, tools, models, bundles and logs. The templates escape all of them, what
does not print is shown as escapes, and the page's own policy lets nothing run or load that is not ours.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from pdp.installed import extra
from pdp.workbench.reports.shown_file import printable

_STYLE: Final = Path(__file__).parent / "report.css"


def render_page(template: Path, *, script: Path | None = None, **values: Any) -> str:
    """Return a page in the style of all reports.

    Args:
        template: a Jinja file; beside `values` it is given `csp`, `style` and, where there is one, `script`.
        script: the page's JavaScript; when absent none can run.
        values: what the template shows.
    """
    with extra("workbench"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415
        from markupsafe import Markup  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    own = {"style": _STYLE} if script is None else {"style": _STYLE, "script": script}
    texts = {name: file.read_text(encoding="utf-8") for name, file in own.items()}
    allowed = "".join(f"{name}-src {_source(text)}; " for name, text in texts.items())
    return environment.get_template(template.name).render(
        csp=f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'",
        # Ours, and trusted: nothing of `values` is in them.
        **{name: Markup(text) for name, text in texts.items()},  # noqa: S704
        **values,
    )


def _printable(value: Any) -> Any:
    """Show what does not print as escapes: it could turn the page's text around, or not be encoded at all."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return printable(value, also="\n")


def _source(text: str) -> str:
    """Return how a content security policy names an inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
