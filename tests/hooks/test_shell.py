"""Which command lines count as literal words. A real bash runs such a command line with exactly these words."""

import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from pdp.hooks.shell import is_listed, literal_words

LITERAL = {
    "pwd": ("pwd",),
    "git status": ("git", "status"),
    "  git\t status  ": ("git", "status"),
    "git log --stat -5": ("git", "log", "--stat", "-5"),
    "ls -la src/main.py": ("ls", "-la", "src/main.py"),
    "ls 'a b' \"c d\" ''": ("ls", "a b", "c d", ""),
    "'git' \"status\"": ("git", "status"),
    "git show HEAD:docs/x@2": ("git", "show", "HEAD:docs/x@2"),
    "dd if=a of=b": ("dd", "if=a", "of=b"),
    "ls -- -l": ("ls", "--", "-l"),
    "git diff 1 2 0x10": ("git", "diff", "1", "2", "0x10"),
    "ls then done fi": ("ls", "then", "done", "fi"),
}

# Other shell syntax. A command line with such syntax does not consist of literal words.
_PARTS = r"""
; rm x|;rm x| ;|;;|& rm x|&|&& rm x| &&|>x|> x| 2>x| 2>&1|&>x| >> x|< x| <x|<<EOF|<<<x|<>x|>&2|<&-| {fd}>x
 $x|$x| ${x}| ${x:-y}| $1| $@| $#| $?| $$| $!| $-| "$x"| "${x}"|'$x'"$x"| $(rm x)|$(rm x)| "$(rm x)"| `rm x`| "`rm x`"
 $((1))| $[1]| --stat=$(x)| --stat=$x| -m"$x"| $'x'| $'\x72m'| $"x"| <(rm x)| >(rm x)|=(rm x)| *|*| ?| a?| [ab]| [!a]
 {a,b}| {1..3}|{,x}| ~| ~/x| ~root| a~| :~| \| \;rm|\ | \x|\x| x\| 'x| "x| 'x'y| x'y'| "x"'y'| 'x'"y"| x"y"| !!| !ls| !$
!x| ^a^b| #| # x| x #y|#x| (x)|(x)| )| }| { x| %1| %| +(x)| @(x)| !(x)| =ls| =x
"""
_STEMS = ("git status", "ls", "git log 'a b'")
REFUSED = [
    *(stem + part for stem in _STEMS for line in _PARTS.strip("\n").split("\n") for part in line.split("|") if part),
    *(f"git status |{after}" for after in ("", " sh", "& sh", "| rm x")),
    "", " ", "\t", "\n", ";", "&", "|", "!", "#", "# git status", "\\", "'", '"', "$", "`", "~", "*", "=",
    "=git status",
    "git status\n", "git status\nrm x", "\ngit status", "git status\r", "git\rstatus", "git status\r\nrm x",
    "git \\\nstatus", "git sta\\\ntus", "git status \\\n", "git status\\", "git status\\\\",
    "git status\0", "git\0status", "git status\0; rm x", "\0", "git status\x0b", "git\x0cstatus", "git status\x1b[A",
    "git status\x7f", "git\x85status", "git\xa0status", "git\u2003status", "git status\u2028rm x", "git\u200bstatus",
    "\uff47it status", "git status\uff1b rm x", "g\u0456t status", "git st\u00e4tus",
    "git stat\u0075\u0308s", "\ufeffgit status",
    "\u202egit status", "git status \u2060", "git status \U0001f600",
    "A=1 git status", "A=1", "A= git status", "A+=1 git status", "A[0]=1 git status", "PATH=. git status",
    "GIT_DIR=x git status",
    "A=1 B=2 git status", "'A'=1 git status", "A='1' git status", "export A=1", "declare A=1", "readonly A",
    "unset A", "local A",
    "typeset A=1", "git() { rm x; }", "git() (rm x)", "function git { rm x; }", "function git() { rm x; }",
    "git () { rm x; }; git",
    "alias git=rm; git x", "(git status)", "{ git status; }", "((1))", "[[ a ]]", "[ a ]", "! git status",
    "if git status; then x; fi",
    "while git status; do x; done", "for a in b; do git status; done", "for a in b", "case a in a) x;; esac",
    "case a in",
    "until x", "select a in b", "if git", "then git", "do git", "done", "fi", "esac", "else git", "elif git",
    "in git", "function git",
    "time git status", "time", "time -p git status", "coproc git status", "coproc", "exec 3>x",
    "git status 3>x", "2>x git status",
    ">x git status", "<x git status", ">x", "<x", "cat <<EOF\nrm\nEOF", "cat <<'EOF'\nrm\nEOF",
    "cat <<-EOF\n\trm\n\tEOF", "cat <<EOF",
    "%1", "%%", "fg %1", "git status &", "git status&", "& git status", "; git status", "git status;;rm x",
    "git;status", "git&status",
    "$git status", "${git} status", "$(echo git) status", "`echo git` status", "g*t status", "gi? status",
    "[g]it status", "{git,rm} x",
    "~/git status", "./g\\it status", "\\git status", "g''it status", "'g'it status",
    'g"i"t status', "$'git' status", '$"git" status',
    "git 'sta\ntus'", 'git "sta\ntus"', "git 'st$x'", 'git "st\\x"', 'git "st!x"', "git 'a' 'b",
    'git "a" "b', "git '", 'git "',
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), LITERAL.items(), ids=LITERAL)
def test_simple_command_line_is_split_into_words(line: str, words: tuple[str, ...]) -> None:
    assert literal_words(line) == words


def test_command_line_with_shell_syntax_beyond_simple_words_is_not_split() -> None:
    assert len(REFUSED) > 300
    assert [line for line in REFUSED if literal_words(line) is not None] == []


def test_too_long_or_invalid_command_line_is_not_split() -> None:
    assert literal_words("git status \ud800") is None
    assert literal_words("ls " + "a" * 4096) is None
    assert literal_words("ls " + "a" * 4000) == ("ls", "a" * 4000)


def test_bash_splits_accepted_command_lines_into_the_same_words(tmp_path: Path) -> None:
    """The command lines combine all shell syntax, and contain unusual characters at each position of a simple line."""
    assert len(_admitted([*LITERAL, *_made_up(60_000), *_disturbed()], tmp_path)) > 1_500


def _made_up(count: int) -> Iterable[str]:
    pieces = [part for line in _PARTS.strip("\n").split("\n") for part in line.split("|")]
    pieces += [
        "git",
        "status",
        "ls",
        "a",
        "1",
        "12a",
        "0x1",
        "a=b",
        "=x",
        "--o=v",
        "-",
        "--",
        ".",
        ":",
        "/",
        "@",
        "+1",
        ",",
        "'a b'",
    ]
    pieces += [
        "''",
        '"c d"',
        "time",
        "then",
        "for",
        "in",
        "let",
        "test",
        "alias",
        "export",
        "A+=1",
        "x=1",
        "f()",
        "[",
        "]]",
        "{",
        "\\",
    ]
    chosen = random.Random(16)  # noqa: S311 - not for secrets
    for _ in range(count):
        some = chosen.choices(pieces, k=chosen.randint(1, 5))
        yield "".join(piece + chosen.choice(["", " ", " ", "\t", "\n"[: chosen.random() < 0.1]]) for piece in some)


def _disturbed() -> Iterable[str]:
    letters = [*map(chr, range(256)), "\u2003", "\u200b", "\u2028", "\uff1b", "\u0301"]
    for line in ("git log --stat", "ls 'a b'", 'ls "a"'):
        for at in range(len(line) + 1):
            yield from (line[:at] + letter + line[at:] for letter in letters)


def _admitted(lines: Iterable[str], folder: Path) -> list[str]:
    """Return the accepted command lines, sorted by their words, after checking that bash finds the same words."""
    counted = [(line, words) for line in dict.fromkeys(lines) if (words := literal_words(line)) is not None]
    (folder / "a").touch()  # If bash expanded a glob, the words would contain the name of this file.
    builtins = set(_bash("compgen -b", folder).split())
    # Pass the words of each command line to printf. If the first word is not a builtin, also run the words as a
    # command.
    as_arguments = [(f"printf '%s\\0' {line}", words) for line, words in counted]
    as_commands = [(line, words) for line, words in counted if words[0] not in builtins and "/" not in words[0]]
    known = "PATH=/nowhere; command_not_found_handle() { printf '%s\\0' \"$@\"; }\n"
    for run in (as_arguments, as_commands):
        read = _bash(known + "".join(f"{line}\nprintf '\\1'\n" for line, _ in run), folder).split("\1")[:-1]
        assert [tuple(words.split("\0")[:-1]) for words in read] == [words for _, words in run]
    return [line for line, _ in counted]


def _bash(script: str, folder: Path) -> str:
    return subprocess.run(
        ["bash", "--norc", "-s"], input=script, capture_output=True, text=True, cwd=folder, check=True, timeout=60
    ).stdout


COMMANDS = {"git": ("status", "log", "--stat"), "pwd": (), "cat": ("a b",)}
LISTED = {
    "git status": True,
    "git": True,
    "git log --stat --stat": True,
    "'git' \"status\"": True,
    "pwd": True,
    "cat 'a b'": True,
    "git push": False,
    "git --stat=1": False,
    "git status pwd": False,
    "GIT status": False,
    "/usr/bin/git status": False,
    "./git status": False,
    "pwd -P": False,
    "cat a b": False,
    "rm": False,
    "git status; pwd": False,
    "": False,
}


@pytest.mark.parametrize(("line", "listed"), LISTED.items(), ids=LISTED)
def test_command_is_listed_only_if_the_command_list_allows_all_its_words(
    line: str, tmp_path: Path, *, listed: bool
) -> None:
    assert is_listed(line, COMMANDS, str(tmp_path)) is listed


GIT = {"git": ("status", "diff", "log"), "ls": ()}
STARTING = {
    "filter": ["filter.x.clean=touch ran; cat"],
    "process": ["filter.x.process=touch ran"],
    "textconv": ["diff.x.textconv=touch ran; cat"],
    "driver": ["diff.x.command=touch ran; true"],
    "external": ["diff.external=touch ran; true"],
    "monitor": ["core.fsmonitor=touch ran; true"],
    "hooks": ["core.hooksPath=.hooks"],
    "include": ["include.path=../more"],
}
"""Repository settings with which git starts another program, as arguments of `git config`."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    work = tmp_path / "work"
    for folder in (tmp_path / "person", work / ".hooks"):
        folder.mkdir(parents=True)
    (work / ".gitattributes").write_text("* filter=x diff=x\n")
    (work / "more").write_text('[diff "x"]\n\ttextconv = touch ran; cat\n')
    (work / ".hooks/post-index-change").write_text("#!/bin/sh\ntouch ran\n")
    (work / ".hooks/post-index-change").chmod(0o755)
    for name in ("a", "b"):
        (work / name).write_text("one\n")
    _git(work, "init -q")
    _git(work, "add .")
    _git(work, "-c user.name=a -c user.email=a@b commit -qm first")
    (work / "a").write_text("two\n")
    os.utime(work / "b", (1, 1))  # An old timestamp makes git rewrite its index.
    return work


def _git(work: Path, line: str) -> None:
    subprocess.run(["git", *line.split(" ")], cwd=work, check=True, capture_output=True, timeout=60)


@pytest.mark.process
@pytest.mark.parametrize("scope", ["--local", "--worktree", "--global"])
@pytest.mark.parametrize("settings", STARTING.values(), ids=STARTING)
def test_git_command_is_not_listed_if_it_can_start_other_programs(
    settings: list[str], scope: str, repository: Path
) -> None:
    assert is_listed("git diff", GIT, str(repository))
    if scope == "--worktree":
        _git(repository, "config extensions.worktreeConfig true")
    for each in settings:
        name, _, value = each.replace("../more", str(repository / "more")).partition("=")
        subprocess.run(["git", "config", scope, name, value], cwd=repository, check=True, timeout=60)
    for command in ("git status", "git diff"):
        subprocess.run(command.split(), cwd=repository, check=False, capture_output=True, timeout=60)
    assert (repository / "ran").exists()
    assert [is_listed(line, GIT, str(repository)) for line in ("git diff", "'git' status", "ls")] == [
        False,
        False,
        True,
    ]


@pytest.mark.process
def test_git_command_is_not_listed_if_a_submodule_can_start_programs(repository: Path, tmp_path: Path) -> None:
    _git(tmp_path, "clone -q work other")
    _git(repository, f"-c protocol.file.allow=always submodule --quiet add {tmp_path}/other sub")
    subprocess.run(["git", "config", "filter.x.clean", "touch ran; cat"], cwd=repository / "sub", check=True)
    (repository / "sub/a").write_text("two\n")
    _git(repository, "status")
    assert (repository / "sub/ran").exists()
    assert not is_listed("git status", GIT, str(repository))


@pytest.mark.process
def test_listed_git_command_counts_as_listed_in_ordinary_repositories(repository: Path, tmp_path: Path) -> None:
    _git(tmp_path, "clone -q work other")
    _git(tmp_path / "other", "checkout -qb topic --track origin/HEAD")
    _git(tmp_path / "other", "worktree add -q ../third")
    for name, value in {"user.name": "a", "core.pager": "delta", "filter.lfs.clean": "git-lfs clean -- %f"}.items():
        _git(tmp_path, f"config --global {name} {value.replace(' ', '_')}")
    (tmp_path / "none").mkdir()
    found = {
        name: is_listed("git log", GIT, str(tmp_path / name)) for name in ("work", "other", "third", "none", "gone")
    }
    assert found == {"work": True, "other": True, "third": True, "none": True, "gone": False}
