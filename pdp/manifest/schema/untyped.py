"""Where a schema leaves open what something is: `any` (tool pattern library, 9.1: "untyped any is forbidden").

Open by what is written: no type, or every type, in some branch; members or items that may be anything (`true`, `{}`).
Open by what is not: `{type: array}` without items, `{type: object}` without members, `prefixItems` without `items`.
The library's own shapes have such members (`hints`, `parts`, `payload`), and `list` and `dict` of a contract's
shorthand are such types. So this second sort is refused of tools with effects alone, as 9.4 forbids `do whatever`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.fields import Pattern
from pdp.manifest.schema.view import branches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.model import DeclaredTool
    from pdp.manifest.schema.view import View

_EVERY: Final = frozenset(("array", "boolean", "null", "number", "object", "string"))
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_ITEMS: Final = ("items", "unevaluatedItems")
_DEEPEST: Final = 16
# What the shapes themselves leave open: the payload is the arguments of the tool that commits it, which types them.
_SHAPED: Final = {Pattern.ACTION_STAGING: frozenset(("action.payload",))}


def untyped_arguments(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths of arguments that may be anything, `[]` for items and `*` for members without a name.

    The candidate of a validation is not among them: its rule pack says what it has to be (pattern 3).
    """
    for path in _Walk(tool.schema_, stated=True).arguments():
        if tool.pattern is not Pattern.VALIDATION or path.partition(".")[0].removesuffix("[]") != "candidate":
            yield path


def open_arguments(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths of arguments that are lists of anything or objects of anything, by not saying of what."""
    shaped = frozenset[str]() if tool.pattern is None else _SHAPED.get(tool.pattern, frozenset())
    for path in _Walk(tool.schema_, stated=False).arguments():
        if path not in shaped:
            yield path


def untyped_result(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths in the result that may be anything; the empty one is the whole. None when unstated.

    A result is open to members that it does not name, whether or not it says so.
    """
    if tool.result_schema is not None:
        yield from dict.fromkeys(_Walk(tool.result_schema, stated=True, members=False).found(tool.result_schema, "", 0))


class _Walk:
    """One way through a schema.

    Args:
        root: where references lead.
        stated: look for what is written to be anything; else for what does not say what it holds.
        members: look at members without a name as well.
    """

    def __init__(self, root: Mapping[str, Any], *, stated: bool, members: bool = True) -> None:
        self._root = root
        self._stated = stated
        self._members = members
        self._sound: set[str] = set()

    def arguments(self) -> Iterator[str]:
        """Yield the paths of arguments that are open, each once; of those without a name as well."""
        yield from dict.fromkeys(
            path for view in branches(self._root, self._root) for path in self._inside(view, "", 0)
        )

    def found(self, schema: Any, path: str, depth: int) -> Iterator[str]:
        """Yield the paths at and below `schema` that are open."""
        # What is looked at already, further up or elsewhere and found sound, is not looked at again: definitions may
        # lead back to themselves, by many ways.
        known = repr(schema)
        if depth > _DEEPEST or known in self._sound:
            return
        self._sound.add(known)
        paths = list(self._found(schema, path, depth))
        if paths:
            self._sound.discard(known)
        yield from paths

    def _found(self, schema: Any, path: str, depth: int) -> Iterator[str]:
        found = tuple(branches(schema, self._root))
        if _is_anything(found):
            if self._stated:
                yield path
            return
        for view in found:
            if view.values is None:
                yield from self._inside(view, path, depth + 1)

    def _inside(self, view: View, path: str, depth: int) -> Iterator[str]:
        """Yield the paths below a branch at `path`; below the whole, where that is empty."""
        kinds = view.kinds or frozenset()
        for name, part in view.properties.items():
            yield from self.found(part, f"{path}.{name}" if path else name, depth)
        yield from self._unnamed(view, path, depth)
        if "array" not in kinds:
            return
        listed = [view.items, *(view.rest.get(key) for key in _ITEMS[1:])]
        first = view.rest.get("prefixItems", [])
        firsts = [part for one in (first if isinstance(first, tuple) else (first,)) for part in one]
        for part in (*firsts, *listed):
            if part is not None:
                yield from self.found(part, f"{path}[]", depth)
        if not self._stated and all(part is None for part in listed):
            yield path

    def _unnamed(self, view: View, path: str, depth: int) -> Iterator[str]:
        if not self._members or "object" not in (view.kinds or ("object",)):
            return
        inner = f"{path}.*" if path else "*"
        stated = [view.rest[key] for key in _MEMBERS if key in view.rest]
        for part in stated:
            for one in part if isinstance(part, tuple) else (part,):
                yield from self.found(one, inner, depth)
        patterns = view.rest.get("patternProperties", {})
        for one in patterns if isinstance(patterns, tuple) else (patterns,):
            for part in one.values():
                yield from self.found(part, inner, depth)
        if path and not self._stated and not (view.properties or stated or patterns):
            yield path


def _is_anything(found: tuple[View, ...]) -> bool:
    """Whether one branch may be anything, or each type is admitted by one."""
    open_ones = [view for view in found if view.values is None or not view.whole]
    if any(view.types is None or not view.whole for view in open_ones):
        return True
    kinds = {"number" if kind == "integer" else kind for view in open_ones for kind in view.types or ()}
    return kinds >= _EVERY
