"""Simple commands, which bash and similar shells run exactly as written, and the check against the allowed commands."""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Parser

# A command line with any other character is not accepted, even if the character is in quotes.
_LINE: Final = re.compile(r"[\w \t\"'+,./:=@-]{1,4096}", re.ASCII)
# A word must not begin with `=`, because zsh expands such a word.
_WORD: Final = re.compile(r"([^\s\"'=][^\s\"']*)|'([^']*)'|\"([^\"]*)\"")
_RESERVED: Final = " case coproc do done elif else esac fi for function if in select then time until while "
_PARSER: Final = Parser(Language(tree_sitter_bash.language()))
_GIT: Final = shutil.which("git", path=f"{os.defpath}:/usr/local/bin:/opt/homebrew/bin") or "git is missing"
# Git settings that a repository may contain. Other settings, and included files, may name a program that git starts.
# Git also reads the configuration of each submodule.
_PLAIN: Final = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol"
    r"|quotepath|abbrev|untrackedcache|longpaths|sparsecheckout\w*)|remote\..+\.(url|pushurl|fetch|tagopt|prune)|\w+\.gpgsign"
    r"|branch\..+\.(remote|merge|rebase|pushremote|description|vscode-merge-base)"
    r"|user\.(name|email|signingkey)|lfs\.(repositoryformatversion|.+\.(access|locksverify))|extensions\.(objectformat|worktreeconfig|refstorage)|diff\.algorithm"
    r"|(advice|branch|color|column|fetch|gc|index|init|pack|pull|push|rebase|rerere|status)\.\w+(?<!hook)"
)
# The user's own git settings are trusted, except drivers that `.gitattributes` selects and programs in the working
# folder.
_PICKED: Final = re.compile(
    r"filter\.(?!lfs\.)|(diff|merge)\..+\.(textconv|command|driver)\n|(core\.(hookspath|fsmonitor)|diff\.external)\n(?![/~]|true|false)"
)


def literal_words(line: str) -> tuple[str, ...] | None:
    """Return the words of a command line if it is one simple command without expansions; otherwise None."""
    root = _PARSER.parse(line.encode()).root_node if _LINE.fullmatch(line) else None
    if root is None or root.has_error or [node.type for node in root.children] != ["command"]:
        return None
    name, *rest = root.children[0].children
    nodes = [*name.children, *rest] if name.type == "command_name" else []
    matches = [_WORD.fullmatch(line[node.start_byte : node.end_byte]) for node in nodes]
    words = tuple(match[match.lastindex or 0] for match in matches if match is not None)
    return words if len(words) == len(nodes) > 0 and f" {words[0]} " not in _RESERVED else None


def is_listed(line: str, commands: Mapping[str, Collection[str]], cwd: str) -> bool:
    """Return whether a line is one simple command with words of `commands` only. git may start no other program."""
    words = literal_words(line)
    if words is None or words[0] not in commands or not set(words[1:]) <= set(commands[words[0]]):
        return False
    if Path(words[0]).name != "git":
        return True
    command, home = [_GIT, "config", "--list", "--show-scope", "-z"], {"HOME": str(Path.home())}
    try:
        listing = subprocess.run(command, cwd=cwd, env=home, capture_output=True, timeout=2, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    entries = listing.decode(errors="replace").split("\0")
    return all(
        not _PICKED.match(entry) if scope in ("system", "global") else _PLAIN.fullmatch(entry.partition("\n")[0])
        for scope, entry in zip(entries[::2], entries[1::2], strict=False)
    )
