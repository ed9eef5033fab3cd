"""Command lines that shells run exactly as written, and their comparison with the shapes of commands.yaml."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Parser

from pdp.hooks.shapes import PLAIN, CommandShape
from pdp.hooks.workspace import Region, Workspace

_MOST: Final = 4096  # The maximum number of characters of a line, and of its shape.
_MOST_WORDS: Final = 128
# A quoted text may not contain what a shell expands. In single quotes, a backslash may not stand before a quote or
# another backslash, because fish reads these differently.
_TOKEN: Final = re.compile(
    rf"""[ \t]+|(?<![^ \t|&;])[12]?(>[ \t]*/dev/null|>&[12])(?=[ \t|&;]|\Z)|(?P<joint>&&|\|\|?|;)
    |(?P<word>{PLAIN}+|(?P<start>-[A-Za-z-]+=?)?('(?P<single>([^'\\]|\\[^'\\])*)'|"(?P<double>[^"$`\\!]*)"))
    (?=[ \t|&;]|\Z)""",
    re.ASCII | re.VERBOSE,
)
# A long text, as agents write messages of commits: "$(cat <<'EOF' ... EOF )". Old shells interpret quotes and
# parentheses in such a text, so it may not contain quotes, and parentheses only in pairs.
_LONG_TEXT: Final = re.compile(
    r"""(?<=[ \t])"\$\(cat\ <<'(?P<end>[A-Z]{2,20})'\n
    (?P<text>(?:(?!(?P=end)\n)(?:[^'"`\\$()\n]|\([^'"`\\$()\n]*\))*\n)+)(?P=end)\n[ \t]*\)"(?=[ \t|&;]|\Z)""",
    re.VERBOSE,
)
_NODES: Final = """
program list pipeline redirected_statement command command_name word number string string_content raw_string
concatenation file_redirect file_descriptor && || | ; > >& "
"""
_SEARCHES: Final = ("grep", "egrep", "fgrep", "rg", "ag", "ack")
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


class Command(NamedTuple):
    """A simple command of a line: the operator in front of it, and its words."""

    joint: str
    words: tuple[str, ...]


class Listed(NamedTuple):
    """A line of which each command has a shape. `searches` are paths below which it reads the text of all files.

    `decisive` is the text of the first shape that needs an approval, or else of the last shape.
    """

    once: bool
    shape: str
    paths: frozenset[str]
    searches: frozenset[str]
    decisive: str


class _Paths:
    """The check of placeholders in a folder. `read` are the paths found. With `once`, a path may also be written."""

    def __init__(self, workspace: Workspace, folder: str) -> None:
        self._workspace, self._folder, self.once = workspace, folder, False
        self._regions: dict[tuple[str, bool], bool] = {}
        self.read: set[str] = set()

    def accepts(self, kind: str, value: str) -> bool:
        path = os.path.join(self._folder, value)  # noqa: PTH118 - `Path` would drop parts
        if kind in ("<path>", "<file>") and (kind == "<path>" or not os.path.isdir(path)):  # noqa: PTH112 - a text
            self.read.add(path)
            return self.is_inside(path) and (not self.once or self.is_inside(path, writes=True))
        if kind == "<glob>":
            # Each alternative in braces may name a file.
            pieces = [piece for piece in re.split("[{},!]", value) if piece]
            return ".." not in value and "/" not in value[:1] and all(map(self.is_inside, pieces))
        # Some programs read the file that a text names, such as the delimiter in `cut -f 1 a -d b` on macOS.
        is_text = kind == "<text>" and (not os.path.isfile(path) or self.is_inside(path))  # noqa: PTH113 - a text
        return (
            is_text or kind == "<number>" or (kind == "<name>" and self.is_inside(path) and not os.path.lexists(path))
        )

    def is_inside(self, path: str, *, writes: bool = False) -> bool:
        if (path, writes) not in self._regions:
            self._regions[path, writes] = self._workspace.region(path, writes=writes) is Region.INSIDE
        return self._regions[path, writes]


def commands_of(line: str) -> list[Command] | None:
    """Return the commands of a pipeline or list if no shell expands anything in it; otherwise None."""
    if len(line) > _MOST or not all(letter.isprintable() or letter in "\n\t" for letter in line):
        return None
    # The shell only runs `cat` on the text, so the text counts as one quoted word.
    line = _LONG_TEXT.sub(lambda match: "'" + match["text"].rstrip("\n") + "'", line)
    commands, words, joint, at = [], list[str](), "", 0
    while at < len(line):
        if (match := _TOKEN.match(line, at)) is None:
            return None
        at = match.end()
        if match["word"]:
            quoted = match["single"] if match["single"] is not None else match["double"]
            words.append(match["word"] if quoted is None else (match["start"] or "") + quoted)
        elif match["joint"]:
            commands.append(Command(joint, tuple(words)))
            words, joint = [], match["joint"]
    commands.append(Command(joint, tuple(words)))
    count = sum(len(command.words) for command in commands)
    is_known = count <= _MOST_WORDS and all(words for _, words in commands) and _is_known(line, len(commands))
    return commands if is_known else None


def _is_known(line: str, count: int) -> bool:
    """Return whether another parser finds the same number of simple commands, and nothing else."""
    nodes = [_PARSER.parse(line.encode()).root_node]
    if nodes[0].has_error:
        return False
    for node in nodes:
        nodes += node.children
    kinds = [node.type for node in nodes]
    return {*_NODES.split()}.issuperset(kinds) and kinds.count("command") == count


def listed(
    line: str, programs: Mapping[str, tuple[CommandShape, ...]], workspace: Workspace, cwd: str
) -> Listed | None:
    """Return how a line is listed if each of its commands has a shape of `programs`. git may start no other program."""
    commands, folder, texts = commands_of(line) or [], cwd, list[str]()
    decisive = ""
    once, is_open, has_moved, paths, searches = False, False, False, set[str](), set[str]()
    is_plain = cache(lambda folder, once: _is_plain(folder, workspace, once=once))
    for (joint, words), (next_joint, _) in zip(commands, [*commands[1:], Command("", ())], strict=False):
        check = _Paths(workspace, folder)
        shape = _shape_of(words, programs, check) if check.is_inside(folder) else None
        # It is not known what earlier commands write. After a `cd` that failed, no command may run.
        if shape is None or (once and not shape.once and check.read) or (has_moved and joint not in ("&&", "|")):
            return None
        if words[0] == "cd":
            folder, has_moved = os.path.join(folder, words[1]), True  # noqa: PTH118 - `..` may follow a link
            if {joint, next_joint} & {"|", "||"} or not os.path.isdir(folder):  # noqa: PTH112 - a text
                return None
        # An earlier command could make a folder without `.git` a repository.
        elif words[0].rpartition("/")[2] == "git" and (
            (is_open and not os.path.lexists(f"{folder}/.git")) or not is_plain(folder, shape.once)
        ):
            return None
        if words[0] in _SEARCHES or words[:2] == ("git", "grep"):
            searches |= check.read or ({folder} if joint != "|" else set())
        texts += [joint, shlex.join(words) if words[0] == "cd" else shape.text]
        decisive = decisive if once else shape.text
        once, paths = once or shape.once, paths | check.read
        is_open = is_open or (shape.once and words[:2] not in (("git", "add"), ("git", "commit")))
    folders = frozenset(path for path in searches if os.path.isdir(path))  # noqa: PTH112 - a text
    text = " ".join(texts).strip()
    return Listed(once, text, frozenset(paths), folders, decisive) if 0 < len(text) <= _MOST else None


def _shape_of(
    words: tuple[str, ...], programs: Mapping[str, tuple[CommandShape, ...]], check: _Paths
) -> CommandShape | None:
    for shape in programs.get(words[0], ()):
        check.once, check.read = shape.once, set()
        if shape.matches(words[1:], check.accepts):
            return shape
    return None


def _is_plain(folder: str, workspace: Workspace, *, once: bool) -> bool:
    """Return whether git starts no program that a setting names, except hooks of the workspace with `once`."""
    if workspace.has_foreign_repository(folder):
        return False
    command, home = [_GIT, "config", "--list", "--show-scope", "-z"], {"HOME": str(Path.home())}
    try:
        listing = subprocess.run(command, cwd=folder, env=home, capture_output=True, timeout=2, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    entries = listing.decode(errors="replace").split("\0")
    return all(
        not _PICKED.match(entry)
        if scope in ("system", "global")
        else _PLAIN.fullmatch(entry.partition("\n")[0]) or (once and entry.startswith("core.hookspath\n"))
        for scope, entry in zip(entries[::2], entries[1::2], strict=False)
    )
