"""A command line's template held against the schemas of its arguments: none of them may be read as an option.

What a value is, is known at the call alone, and refused there (pdp/execution/cli_tool.py). Found here is what template
and schemas tell beforehand.

Source: tool layer document, CLI tools ("never pass raw model output as shell arguments").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.canonical import canonical
from pdp.documents import shown_name
from pdp.manifest.argv import argv_item
from pdp.manifest.findings import Finding
from pdp.manifest.schema_view import views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.argv import ArgvItem
    from pdp.manifest.models import DeclaredTool

OPTIONS_END: Final = "--"
"""The item after which programs read no more options."""

_DEEPEST: Final = 16


def may_take_value(text: str) -> bool:
    """Return whether an item is an option that may take its value from what follows it."""
    return text.startswith("-") and "=" not in text


def option_findings(tool: DeclaredTool, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield where an argument would be read as an option; `arguments` are the schemas of the tool's arguments.

    Any text right after an option's letters, as in `-x{name}`: its own letters would be options as well. And a constant
    that begins with `-` where an item begins with it, so that every call with it would be refused.
    """
    guarded = False
    for at, text in enumerate(tool.cli.argv if tool.cli is not None else ()):
        item = argv_item(text)
        path, field = ("cli", "argv", at), f"`cli.argv[{at}]`"
        for name in _after_letters(item):
            if name in arguments and _may_be_any_text(arguments[name], tool.schema_):
                yield Finding(
                    path,
                    f"{field} lets argument {shown_name(name)} be read as options after {item.parts[0]}",
                    f"write `--option={{{name}}}` or `{{{name}:{item.parts[0]}}}`, or give it an enum",
                )
        leading = _leading(item)
        if not guarded and leading in arguments:
            for value in _dashed(arguments[leading], tool.schema_):
                yield Finding(
                    path,
                    f"{field} begins with argument {shown_name(leading)}, which may be `{value:.40}`: the program "
                    "would read it as an option",
                    f"write `--option={{{leading}}}`, or put an item `--` before it",
                )
        # Whether it is an option's value is known at the call: here, it may be what it looks like.
        guarded = guarded or item.parts == (OPTIONS_END,)


def _after_letters(item: ArgvItem) -> tuple[str, ...]:
    return item.arguments if item.flag is None and may_take_value(item.parts[0]) else ()


def _leading(item: ArgvItem) -> str:
    """The argument that an item of the command line begins with; empty where there is none."""
    return item.arguments[0] if item.arguments and not item.parts[0] else ""


def _may_be_any_text(schema: Any, root: Mapping[str, Any], deep: int = 0) -> bool:
    for view in views(schema, root):
        if view.whole and view.values is not None:
            continue
        if view.types is None or "string" in view.types or not view.whole or deep > _DEEPEST:
            return True
        if "array" in view.types and _may_be_any_text(True if view.items is None else view.items, root, deep + 1):
            return True
    return False


def _dashed(schema: Any, root: Mapping[str, Any], deep: int = 0) -> Iterator[str]:
    """Yield the constants of a schema that begin with `-` on a command line."""
    for view in views(schema, root):
        for value in view.values or ():
            text = value if isinstance(value, str) else canonical(value).decode()
            if text.startswith("-"):
                yield text
        if view.items is not None and deep <= _DEEPEST:
            yield from _dashed(view.items, root, deep + 1)
