"""The words of a simple command: what a shell runs exactly as it is written, in bash and in its relatives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import tree_sitter_bash
from tree_sitter import Language, Parser

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tree_sitter import Node

_LINE: Final = re.compile(r"[\t\x20-\x7e]{1,4096}")
# Not `=` at the start, which zsh expands; `~`, `!`, braces, globs, `\` and `#` nowhere.
_WORD: Final = re.compile(r"[\w@%+:,./-][\w@%+:,./=-]*", re.ASCII)
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"$`\\!]*\"")
_RESERVED: Final = frozenset((
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then",
    "time", "until", "while",
))  # fmt: skip
_PARSER: Final = Parser(Language(tree_sitter_bash.language()))


def literal_words(line: str) -> tuple[str, ...] | None:
    """Return the words of a line that is one simple command of literal words; None: it is more, or may be more."""
    if not _LINE.fullmatch(line):
        return None
    root = _PARSER.parse(line.encode()).root_node
    if root.has_error or root.child_count != 1 or (command := root.children[0]).type != "command":
        return None
    words: list[str] = []
    end = 0
    for node in _parts(command):
        text = "" if node.text is None else node.text.decode()
        if node.type in ("word", "number") and _WORD.fullmatch(text):
            words.append(text)
        elif node.type in ("string", "raw_string") and _QUOTED.fullmatch(text):
            words.append(text[1:-1])
        else:
            return None
        if line[end : node.start_byte].strip(" \t") or (end and end == node.start_byte):
            return None
        end = node.end_byte
    return None if line[end:].strip(" \t") or words[0] in _RESERVED else tuple(words)


def is_listed(line: str, commands: Mapping[str, Collection[str]]) -> bool:
    """Return whether a line is one simple command of a listed program, with words that are listed for it."""
    words = literal_words(line)
    return words is not None and words[0] in commands and set(words[1:]) <= set(commands[words[0]])


def _parts(command: Node) -> Iterator[Node]:
    for node in command.children:
        yield node.children[0] if node.type == "command_name" and node.child_count == 1 else node
