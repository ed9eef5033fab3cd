"""Draw the output of commands as SVG, and show Markdown as a code host shows it."""

import io
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from html import escape
from typing import Final
from unittest.mock import patch

from markdown_it import MarkdownIt
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from pdp.cli import run_command

COLUMNS: Final = 100

_SVG: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""The format of rich without its fonts, which a page would load from another host."""

_VARYING: Final = {
    r"\d+\.\d\d s\b": "0.80 s",
    r"\S+/pdp-demo-\w+/": "/tmp/pdp-demo/",  # noqa: S108 - only shown
    r"request [0-9a-f]{32}": f"request {'0123456789abcdef' * 2}",
}
"""Parts of the output that differ each time, and what the picture shows instead."""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_picture(*commands: str) -> str:
    """Run `pdp` commands in this process, and return an SVG of the terminal in which they print."""
    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for command in commands:
        out = _Terminal()
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        with patch.dict(os.environ, kept, clear=True), redirect_stdout(out), redirect_stderr(io.StringIO()):
            run_command(command.split()[1:])
        said = out.getvalue()
        for pattern, shown in _VARYING.items():
            said = re.sub(pattern, shown, said)
        screen.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        # Colours that the command prints are kept; rich adds none.
        screen.print(Text.from_ansi(said.rstrip("\n")), overflow="fold")
    return screen.export_svg(title=commands[0], theme=MONOKAI, code_format=_SVG, unique_id="pdp")


def texts(svg: str) -> list[str]:
    """Return the texts of an SVG by rich, whose other parts depend on the version of rich."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


_HOST: Final = """\
<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 24px; color: #1f2328; font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }}
article {{ border: 1px solid #d1d9e0; border-radius: 6px; }}
header {{ padding: 8px 16px; background: #f6f8fa; border-bottom: 1px solid #d1d9e0; color: #59636e; }}
header b {{ color: #1f2328; }}
main {{ padding: 0 16px 8px; overflow-wrap: anywhere; }}
h2 {{ margin: 16px 0; padding-bottom: 6px; border-bottom: 1px solid #d1d9e0; font-size: 22px; }}
code {{ padding: 2px 5px; border-radius: 6px; background: #eff1f3; font: 13px ui-monospace, monospace; }}
pre {{ padding: 12px 0; border-radius: 6px; background: #f6f8fa; overflow: hidden; }}
pre code {{ padding: 0; background: none; white-space: pre-wrap; }}
pre span {{ display: block; padding: 0 12px; min-height: 1.4em; }}
.add {{ background: #dafbe1; }} .remove {{ background: #ffebe9; }}
table {{ border-collapse: collapse; }} th, td {{ padding: 6px 13px; border: 1px solid #d1d9e0; text-align: left; }}
details {{ margin: 12px 0; }}
</style><article><header><b>policy</b> commented on this pull request</header><main>{body}</main></article>
"""


def comment_page(markdown: str) -> str:
    """Return an HTML page with a comment in a pull request, in the style of a code host."""

    def colored(text: str, language: str, _: str) -> str:
        if language != "diff":
            return escape(text)
        names = {"+": "add", "-": "remove"}
        return "".join(
            f'<span class="{names.get(line[:1], "")}">{escape(line)}</span>' for line in text.rstrip("\n").split("\n")
        )

    renderer = MarkdownIt("commonmark", {"html": True, "highlight": colored}).enable("table")
    return _HOST.format(body=renderer.render(markdown))
