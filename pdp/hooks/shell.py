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
_RESERVED: Final = " case coproc do done elif else esac fi for function if in select then time until while "
_PARSER: Final = Parser(Language(tree_sitter_bash.language()))


def literal_words(line: str) -> tuple[str, ...] | None:
    """Return the words of a line that is one simple command of literal words; None: it is more, or may be more."""
    root = _PARSER.parse(line.encode()).root_node if _LINE.fullmatch(line) else None
    if root is None or root.has_error or [node.type for node in root.children] != ["command"]:
        return None
    name, *rest = root.children[0].children
    nodes = [*name.children, *rest] if name.type == "command_name" else []
    found = [_WORD.fullmatch(line[node.start_byte : node.end_byte]) for node in nodes]
    words = tuple(match[match.lastindex or 0] for match in found if match is not None)
    return words if len(words) == len(nodes) > 0 and f" {words[0]} " not in _RESERVED else None


def is_listed(line: str, commands: Mapping[str, Collection[str]]) -> bool:
    """Return whether a line is one simple command of a listed program, with words that are listed for it."""
    words = literal_words(line)
    return words is not None and words[0] in commands and set(words[1:]) <= set(commands[words[0]])
