"""The parts of a generated page: tables, snippets, links, and docstrings as Markdown."""

import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
_WIDTH: Final = 120
_URL: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
_CODE: Final = re.compile(r"(`+[^`]+`+)")
_SECTION: Final = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Examples|Example|Note)::?$", re.MULTILINE)
_ITEM: Final = re.compile(r"^ *(\*{0,2}\w+(?: ?\([^)]*\))?(?:, \*{0,2}\w+)*):\s+", re.MULTILINE)


def escaped(text: str) -> str:
    """Return prose whose characters outside of code spans have no meaning in HTML or in a table."""
    parts = _CODE.split(text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("|", "&#124;").replace("*", "\\*")
        for part in parts
    )


def paragraph(text: str) -> str:
    """Return prose as lines of at most 120 characters; paragraphs and lists stay."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(
        "\n".join(map(_line_of_list, block.splitlines()))
        if re.match(r"\s*(?:[-*]|\d+\.) ", block)
        else textwrap.fill(escaped(" ".join(block.split())), 120, break_long_words=False, break_on_hyphens=False)
        for block in blocks
    )


def _line_of_list(line: str) -> str:
    """Return a line of a list, indented by four spaces for each level, as Markdown needs it."""
    indent, marker, text = re.fullmatch(r"( *)((?:[-*]|\d+\.) )?(.*)", line).groups("")  # type: ignore[union-attr]
    return indent * (2 if marker else 1) + marker.replace("*", "-") + escaped(text)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. Cells are Markdown already."""
    lines: list[Sequence[object]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(' '.join(str(cell).split()) for cell in cells)} |" for cells in lines)


def fence(language: str, text: str) -> str:
    """Return a snippet, with a fence that is longer than all fences in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    return f"{'`' * (longest + 1)}{language}\n{text.rstrip()}\n{'`' * (longest + 1)}"


def code(value: object) -> str:
    """Return a code span for text, or for a value as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else "empty text"


def page(title: str, *parts: str) -> str:
    """Return a page."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def source(file: str, line: int | None = None, text: str | None = None) -> str:
    """Return a link to a file of the repository, with its name and line or another `text`."""
    name = file.rpartition("/")[2]
    place = name if line is None else f"{name}:{line}"
    return f"[{code(text or place)}]({on_host(file, '' if line is None else f'#L{line}')})"


def on_host(file: object, anchor: str = "") -> str:
    """Return the address of a file of the repository on the code host."""
    return f"{_URL}/blob/main/{file}{anchor}"


def docstring(text: str | None) -> str:
    """Return a docstring in Google's style as Markdown."""
    if not text:
        return ""
    head, *sections = _SECTION.split(inspect.cleandoc(text))
    parts = [paragraph(head)]
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        lines = textwrap.dedent(body.strip("\n"))
        if name.startswith("Example"):
            parts += ["**Example**", fence("pycon" if ">>>" in lines else "python", lines)]
        elif _ITEM.match(lines):
            items = [_listed(item) for item in re.split(r"\n(?=\S)", lines.strip())]
            parts += [f"**{name}**", "\n".join(items)]
        else:
            parts += [f"**{name}**", paragraph(lines)]
    return "\n\n".join(parts)


def _listed(item: str) -> str:
    name, _, text = " ".join(item.split()).partition(": ")
    return textwrap.fill(
        f"- `{name}`: {escaped(text)}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/$_.][\w$./@ ><=()-]*(?<! )", value) and value not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def block(name: str, value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a field in YAML: in one line if it fits, otherwise with a line for each part."""
    line = f"{indent}{name}: {flow(value)}"
    if len(line) <= _WIDTH or not isinstance(value, dict | list | tuple):
        yield line
    elif isinstance(value, dict):
        yield f"{indent}{name}:"
        for key, each in value.items():
            yield from block(_key(key), each, f"{indent}  ")
    else:
        yield f"{indent}{name}:"
        yield from (line for each in value for line in _item(each, f"{indent}  "))


def _item(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and len(f"{indent}- {flow(value)}") > _WIDTH:
        lines = [line for key, each in value.items() for line in block(_key(key), each, f"{indent}  ")]
        yield f"{indent}- {lines[0].lstrip()}"
        yield from lines[1:]
    else:
        yield f"{indent}- {flow(value)}"


_WORDS: Final = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def _key(key: object) -> str:
    return key if isinstance(key, str) and re.fullmatch(r"[\w./$-]+", key) else json.dumps(key)
