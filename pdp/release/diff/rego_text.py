"""What Rego modules say, apart from how it is written: comments, blanks, and the order of rules do not count."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.canonical import canonical
from pdp.engine.opa import find_opa
from pdp.errors import UsageError
from pdp.rego.modules import Module, write_modules
from pdp.rego.opa_tool import OpaTool
from pdp.rego.rules import statements

if TYPE_CHECKING:
    from collections.abc import Mapping

# A text, a comment, a word or number, or any other sign.
_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|`[^`]*`|#[^\n]*|[A-Za-z_]\w*|[0-9][\w.]*|\s+|.', re.DOTALL)
_PLACES: Final = frozenset(("location", "annotations", "comments"))


def statement_texts(text: str) -> Counter[str]:
    """Return the statements of a module in one form, each with how often it stands there."""
    return Counter(normal(each.text) for each in statements(text))


def normal(text: str) -> str:
    """Return a statement's tokens with one blank between, without comments; line ends count as one sign each."""
    tokens: list[str] = []
    for token in _TOKEN.findall(text):
        if token[0] == "#":
            continue
        if token.isspace():
            if "\n" in token and tokens and tokens[-1] != ";":
                tokens.append(";")
        else:
            tokens.append(token)
    return " ".join(tokens).strip("; ").replace("{ ;", "{").replace("; }", "}").replace(", }", "}")


def same_policy(old: Mapping[str, str], new: Mapping[str, str], paths: list[str]) -> frozenset[str]:
    """Return those of `paths` whose modules say the same in both bundles, whatever they look like.

    With OPA, modules are compared as it parses them; without it by their tokens, line ends among them.
    """
    equal = {path for path in paths if statement_texts(old[path]) == statement_texts(new[path])}
    rest = [path for path in paths if path not in equal]
    opa = find_opa() if rest else None
    if opa is None:
        return frozenset(equal)
    trees = [_trees(opa, {path: side[path] for path in rest}) for side in (old, new)]
    return frozenset(equal | {path for path in rest if trees[0].get(path) == trees[1].get(path, b"")})


def _trees(opa: Path, texts: Mapping[str, str]) -> dict[str, Counter[bytes]]:
    modules = {path: Module(Path(path), text, path.startswith("custom/")) for path, text in texts.items()}
    with tempfile.TemporaryDirectory(prefix="pdp-diff-") as folder:
        write_modules(modules, Path(folder))
        tool = OpaTool(opa, Path(folder), sources={path: module.file for path, module in modules.items()})
        found = {}
        for path in modules:
            try:
                found[path] = _parts(tool.parse(path))
            except UsageError:
                # What OPA does not parse is compared by its text, and that differs.
                continue
    return found


def _parts(tree: Any) -> Counter[bytes]:
    """Package, imports and rules, each by itself: their order is nothing."""
    parts = [tree.get("package"), *(tree.get("imports") or ()), *(tree.get("rules") or ())]
    return Counter(canonical(_bare(part)) for part in parts)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items() if key not in _PLACES}
    return [_bare(each) for each in value] if isinstance(value, list) else value
