"""The words of a simple command: what a shell runs exactly as it is written, in bash and in its relatives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import tree_sitter_bash
from tree_sitter import Language, Parser

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LINE: Final = re.compile(r"[\w \t\"'+,./:=@-]{1,4096}", re.ASCII)  # nothing else, even in quotes
_WORD: Final = re.compile(r"([^\s\"'=][^\s\"']*)|'([^']*)'|\"([^\"]*)\"")  # zsh expands a `=` at the start
_WORDS: Final = frozenset(("number", "raw_string", "string", "word"))
_RESERVED: Final = frozenset((
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then",
    "time", "until", "while",
))  # fmt: skip
_PARSER: Final = Parser(Language(tree_sitter_bash.language()))


def literal_words(line: str) -> tuple[str, ...] | None:
    """Return the words of a line that is one simple command of literal words; None: it is more, or may be more."""
    root = _PARSER.parse(line.encode()).root_node if _LINE.fullmatch(line) else None
    if root is None or root.has_error or [node.type for node in root.children] != ["command"]:
        return None
    name, *rest = root.children[0].children
    nodes = [*name.children, *rest] if name.type == "command_name" else []
    found = [_WORD.fullmatch(line[node.start_byte : node.end_byte]) for node in nodes if node.type in _WORDS]
    words = tuple(match[match.lastindex or 0] for match in found if match is not None)
    return words if words and len(words) == len(nodes) and words[0] not in _RESERVED else None


def is_listed(line: str, commands: Mapping[str, Collection[str]]) -> bool:
    """Return whether a line is one simple command of a listed program, with words that are listed for it."""
    words = literal_words(line)
    return words is not None and words[0] in commands and set(words[1:]) <= set(commands[words[0]])
