"""A command line's template held against the schemas of its arguments.

Both name the same arguments; none of them may be read as an option, and none may choose a program or write a script.
What a value is, is known at the call alone, and refused there (pdp/execution/program.py). Found here is what template
and schemas tell beforehand.

Source: tool layer document, CLI tools ("never pass raw model output as shell arguments").
"""

from __future__ import annotations

from itertools import chain, product
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import shown_name
from pdp.json import canonical
from pdp.manifest.findings import Finding
from pdp.manifest.programs.argv import argv_item
from pdp.manifest.programs.interpreters import writes_script
from pdp.manifest.programs.launchers import Word
from pdp.manifest.schema.compile import argument_schemas
from pdp.manifest.schema.view import views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.model import DeclaredTool
    from pdp.manifest.programs.argv import ArgvItem

OPTIONS_END: Final = "--"
"""The item after which programs read no more options."""

_DEEPEST: Final = 16
_MOST_LINES: Final = 256
# No program, script or option is a number: one stands for all of them.
_LIKE_CONSTANTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "boolean": (True, False), "integer": (1,), "null": (None,), "number": (1,),
}  # fmt: skip


def may_take_value(text: str) -> bool:
    """Return whether an item is an option that may take its value from what follows it."""
    return text.startswith("-") and "=" not in text


def template_findings(tool: DeclaredTool) -> Iterator[Finding]:
    """Yield what is wrong with the command line of a tool of type `cli`; nothing for any other tool.

    Args:
        tool: an entry whose schema stands on its own and has no fault.
    """
    if tool.cli is None:
        return
    arguments = argument_schemas(tool.schema_)
    yield from _name_findings(tool, arguments)
    yield from _script_findings(tool, arguments)
    yield from _option_findings(tool, arguments)


def _name_findings(tool: DeclaredTool, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    used: set[str] = set()
    for at, text in enumerate(tool.cli.argv if tool.cli is not None else ()):
        for name in argv_item(text).arguments:
            if name not in arguments and name not in used:
                yield Finding(
                    ("cli", "argv", at),
                    f"`cli.argv[{at}]` uses {shown_name(name)}, which is no argument",
                    "name it in the schema",
                )
            used.add(name)
    for name in arguments:
        if name not in used:
            yield Finding(
                ("cli", "argv"),
                f"`cli.argv` does not use argument {shown_name(name)}",
                f"add `{{{name}}}`, or drop the argument",
            )


def _script_findings(tool: DeclaredTool, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield that an argument chooses what is run. One that has a few constants is read as each of them in turn."""
    items = [argv_item(text) for text in (tool.cli.argv if tool.cli is not None else ())]
    if writes_script([_word(item) for item in items]) is None:
        return
    choices = [_choices(tool, item, arguments) for item in items]
    lines = 1
    for each in choices:
        lines *= len(each)
    if lines > _MOST_LINES:
        choices = [[(_word(item),)] for item in items]
    for line in product(*choices):
        danger = writes_script(list(chain.from_iterable(line)))
        if danger is None:
            continue
        what = f"what {danger.program} runs"
        hint = 'state the whole script, and pass arguments to it: `[sh, -c, \'... "$1"\', name, "{argument}"]`'
        if danger.option:
            what = f"the value of {danger.option} of {danger.program}: what it runs, loads or writes to"
            hint = "state the value"
        yield Finding(
            ("cli", "argv"),
            f"`cli.argv` must not let an argument be {what}",
            f"{hint}; or list what the argument may be: `enum: [...]`",
        )
        return


def _word(item: ArgvItem) -> Word:
    if item.flag is not None:
        return Word(item.flag, literal=False)
    return Word(item.parts[0], literal=not item.arguments)


def _choices(tool: DeclaredTool, item: ArgvItem, arguments: Mapping[str, Any]) -> list[tuple[Word, ...]]:
    """Return what an item can become, each as words: itself, unless all its arguments have constants."""
    values = [_constants(arguments.get(name), tool.schema_) for name in item.arguments]
    if not item.arguments or not all(values):
        return [(_word(item),)]
    found = [_stated(item, line) for line in product(*values)]
    branches = views(tool.schema_, tool.schema_)
    if not all(view.whole and view.required.issuperset(item.arguments) for view in branches):
        found.append(())  # an argument that is absent leaves its item out
    return [tuple(Word(text, literal=True) for text in texts) for texts in dict.fromkeys(found)]


def _stated(item: ArgvItem, values: tuple[Any, ...]) -> tuple[str, ...]:
    """Return what an item becomes with these values, as on a command line (pdp/execution/program.py)."""
    if None in values or (item.flag is not None and values[0] is False):
        return ()
    texts = tuple(value if isinstance(value, str) else canonical(value).decode() for value in values)
    if item.flag is not None:
        return (item.flag,) if values[0] is True else (item.flag, *texts)
    return ("".join(chain.from_iterable(zip(item.parts[::2], (*texts, ""), strict=True))),)


def _constants(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Return the constants that an argument may be; none: it may be any text."""
    found: list[Any] = []
    for view in views(schema, root):
        if view.whole and view.values is not None and not any(isinstance(one, list | dict) for one in view.values):
            found += view.values
        elif view.whole and view.types is not None and view.types <= _LIKE_CONSTANTS.keys():
            found += [value for kind in view.types for value in _LIKE_CONSTANTS[kind]]
        else:
            return []
    return found


def _option_findings(tool: DeclaredTool, arguments: Mapping[str, Any]) -> Iterator[Finding]:
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
