"""What Rego modules say, apart from how it is written: comments, blanks, and the order of rules do not count."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from pdp.workbench.diff.syntax import parsed
from pdp.workbench.opa.program import find_opa
from pdp.workbench.opa.rules import statements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.workbench.diff.syntax import Part
    from pdp.workbench.opa.rules import RuleSite, Statement

# A text, a comment, a word or number, or any other sign.
_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|`[^`]*`|#[^\n]*|[A-Za-z_]\w*|[0-9][\w.]*|\s+|.', re.DOTALL)


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


class Written:
    """Modules of two bundles, compared rule by rule, whatever they look like.

    With OPA, modules are compared as it parses them; without it by their tokens, line ends among them.

    Args:
        old, new: all modules by path.

    Attributes:
        same: the paths of modules that say the same in both.
    """

    def __init__(self, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        shared = [path for path in old if path in new]
        equal = {path for path in shared if old[path] == new[path]}
        equal |= {
            path for path in shared if path not in equal and statement_texts(old[path]) == statement_texts(new[path])
        }
        rest = [{path: text for path, text in side.items() if path not in equal} for side in (old, new)]
        opa = find_opa() if all(rest) else None
        self._trees: tuple[dict[str, tuple[Part, ...]], ...] = ({}, {})
        if opa is not None:
            trees = tuple(parsed(opa, each, side) for each, side in zip(rest, (old, new), strict=True))
            if all(tree.keys() == each.keys() for tree, each in zip(trees, rest, strict=True)):
                # What OPA does not parse is compared by its tokens, and then all of it, so that like meets like.
                self._trees = trees
        one, other = self._trees
        self.same = frozenset(
            equal | {path for path in one.keys() & other.keys() if _says(one[path]) == _says(other[path])}
        )

    def form(self, side: int, path: str, statement: Statement | RuleSite) -> str:
        """Return what a statement says, in one form; `side` is 0 in the old bundle, 1 in the new one."""
        last = statement.line + statement.text.count("\n")
        parts = sorted(part.says for part in self._trees[side].get(path, ()) if statement.line <= part.line <= last)
        return b"\n".join(parts).decode() if parts else normal(statement.text)


def _says(parts: tuple[Part, ...]) -> Counter[bytes]:
    """Package, imports and rules, each by itself: their order is nothing."""
    return Counter(part.says for part in parts)
