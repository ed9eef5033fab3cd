"""Which command lines are listed. Real shells run a listed line as exactly the commands that were compared."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdp.hooks.shapes import HookCommands
from pdp.hooks.shell import Command, commands_of, listed
from pdp.hooks.workspace import Workspace
from tests.hooks.commands.test_commands import ONCE_A_RUN, RUNS, STARTER

LITERAL = {
    "pwd": [("pwd",)],
    "  git\t status  ": [("git", "status")],
    "git log --stat -5": [("git", "log", "--stat", "-5")],
    "ls 'a b' \"c d\" ''": [("ls", "a b", "c d", "")],
    "'git' \"status\"": [("git", "status")],
    "git show HEAD~2:docs/x@2 HEAD^ v1~1..v2": [("git", "show", "HEAD~2:docs/x@2", "HEAD^", "v1~1..v2")],
    "dd if=a of=b": [("dd", "if=a", "of=b")],
    "ls -- -l then done": [("ls", "--", "-l", "then", "done")],
    "grep '[a-z]+ $x `y` \\b!' --include=\"*.py\" -k'a'": [("grep", "[a-z]+ $x `y` \\b!", "--include=*.py", "-ka")],
    "git commit -m 'a\n\n\u00e4 \u2014 b'": [("git", "commit", "-m", "a\n\n\u00e4 \u2014 b")],
    "a | b&&c ||d; e": [("a",), ("b",), ("c",), ("d",), ("e",)],
    "a 2>/dev/null >&2|b > /dev/null 2>&1 c": [("a",), ("b", "c")],
}

# Other shell syntax. A command line with such syntax is not understood.
_PARTS = r"""
; ;|;;|& rm x|&|&& &| &&|>x|> x| 2>x|&>x|&>/dev/null|>>/dev/null|</dev/null|>/dev/nullx|>/dev/null/x|a>/dev/null
 3>/dev/null
 >> x|< x| <x|<<EOF|<<<x|<>x|>&x|<&-| {fd}>x|>&-| 2>& 1
 $x|$x| ${x}| ${x:-y}| $1| $@| $#| $?| $$| $!| $-| "$x"| "${x}"|'$x'"$x"| $(rm x)|$(rm x)| "$(rm x)"| `rm x`| "`rm x`"
 $((1))| $[1]| --stat=$(x)| --stat=$x| -m"$x"| $'x'| $'\x72m'| $"x"| <(rm x)| >(rm x)|=(rm x)| *|*| ?| a?| [ab]| [!a]
 {a,b}| {1..3}|{,x}| ~| ~/x| ~root| :~|=~|~a| ^a| a^b| \| \;rm|\ | \x|\x| x\| 'x| "x| 'x'y| x'y'| "x"'y'| 'x'"y"| x"y"
 'a\'| 'a\\'| "a\b"| "a!b"| !!| !ls| !$|!x| ^a^b
 #| # x| x #y|#x| (x)|(x)| )| }| { x| +(x)| @(x)| !(x)| =ls| =x| a==ls| a:=ls
"""
_STEMS = ("git status", "ls", "git log 'a b'")
REFUSED = [
    *(stem + part for stem in _STEMS for line in _PARTS.strip("\n").split("\n") for part in line.split("|") if part),
    *(f"git status |{after}" for after in ("", "& sh", "| | rm x")),
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
    "(git status)", "{ git status; }", "((1))", "[[ a ]]", "[ a ]", "! git status",
    "if git status; then x; fi",
    "while git status; do x; done", "for a in b; do git status; done", "for a in b", "case a in a) x;; esac",
    "case a in",
    "until x", "select a in b", "if git",
    "function git",
    "exec 3>x",
    "git status 3>x", "2>x git status",
    ">x git status", "<x git status", ">x", "<x", "cat <<EOF\nrm\nEOF", "cat <<'EOF'\nrm\nEOF",
    "cat <<-EOF\n\trm\n\tEOF", "cat <<EOF",
    "git status &", "git status&", "& git status", "; git status", "git status;;rm x",
    "git&status",
    "$git status", "${git} status", "$(echo git) status", "`echo git` status", "g*t status", "gi? status",
    "[g]it status", "{git,rm} x",
    "~/git status", "./g\\it status", "\\git status", "g''it status", "'g'it status",
    'g"i"t status', "$'git' status", '$"git" status',
    'git "st\\x"', 'git "st!x"', "git 'a' 'b",
    'git "a" "b', "git '", 'git "',
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), LITERAL.items(), ids=ascii)
def test_command_line_is_split_into_commands_and_words(line: str, words: list[tuple[str, ...]]) -> None:
    assert [command.words for command in commands_of(line) or ()] == words


def test_command_line_with_shell_syntax_that_is_expanded_is_not_understood() -> None:
    assert len(REFUSED) > 300
    assert [line for line in REFUSED if commands_of(line) is not None] == []


def test_too_long_or_invalid_command_line_is_not_understood() -> None:
    assert commands_of("git status \ud800") is None
    assert commands_of("git status '\ud800'") is None
    assert commands_of("ls " + "a" * 4096) is None
    assert commands_of("ls" + " a" * 127) is not None
    assert commands_of("ls" + " a" * 128) is None


LINES = [line for line in (RUNS + ONCE_A_RUN).splitlines() if line and "gradlew" not in line and "vendor/" not in line]
LINES += [
    "git commit -m 'a\n\nb' -q",
    "cd src && ls; pwd",
    "cat a | grep -c 'x' || true",
    "cd src && cat ../a && cd ../tests && ls",
]


def test_shells_run_exactly_the_commands_that_were_compared(tmp_path: Path) -> None:
    assert attack(600, 33, tmp_path) > 70


def attack(count: int, seed: int, folder: Path) -> int:
    """Run the listed ones of `count` made-up lines in each shell, with stubs for programs. Return their number."""
    work = a_workspace(folder)
    stubs = folder / "stubs"
    stubs.mkdir()
    others = ("rm", "x", "y", "sh", "b", "root", "if", "dd", "touch", "evil")
    (stubs / "stub").write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$PWD" "$@" "$END" >>"$LOG"\nexit "$CODE"\n')
    (stubs / "stub").chmod(0o755)
    for name in {*STARTER, *others} - {"cd"}:
        if "/" not in name:
            (stubs / name).symlink_to("stub")
    workspace = Workspace(str(work), folder / "policy")
    lines = dict.fromkeys(made_up(count, seed))
    accepted = [line for line in lines if listed(line, STARTER, fresh(workspace), str(work))]
    before = sorted(map(str, work.rglob("*")))
    builtins = "".join(
        f'{name}() {{ {stubs}/{name} "$@"; }}\n' for name in ("echo", "printf", "test", "pwd", "true", "false", "which")
    )
    for shell in filter(shutil.which, ("bash", "dash", "zsh")):
        for code in ("0", "1"):
            log = folder / f"{shell}{code}"
            log.touch()
            variables = {"PATH": str(stubs), "LOG": str(log), "CODE": code, "END": "\1", "HOME": str(folder)}
            script = builtins + "".join(
                f"{line}\ncd {work}\n{'command' if shell == 'dash' else 'builtin'} printf '\\2' >>{log}\n"
                for line in accepted
            )
            options = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}.get(shell, [])
            done = subprocess.run(
                [shutil.which(shell) or shell, *options, "-s"], input=script, env=variables, cwd=work,
                capture_output=True, text=True, timeout=3000, check=False,
            )  # fmt: skip
            runs = log.read_text().split("\2")[:-1]
            assert len(runs) == len(accepted), (shell, done.stderr[-500:])
            for line, run in zip(accepted, runs, strict=True):
                ran = sorted(tuple(each.split("\0")[:-1]) for each in run.split("\1\0")[:-1])
                assert ran == sorted(expected(commands_of(line) or [], str(work), fails=code == "1")), (shell, line)
    assert sorted(map(str, work.rglob("*"))) == before
    return len(accepted)


def expected(commands: list[Command], folder: str, *, fails: bool) -> Iterator[tuple[str, ...]]:
    """Yield program, folder and arguments of each command that a shell starts, if stubs fail or succeed."""
    failed = runs = False
    for joint, words in commands:
        runs = runs if joint == "|" else {"&&": not failed, "||": failed}.get(joint, True)
        if not runs:
            continue
        if words[0] == "cd":
            folder, failed = os.path.realpath(f"{folder}/{words[1]}"), False
        else:
            failed = fails
            yield (words[0], folder, *words[1:])


def made_up(count: int, seed: int) -> Iterator[str]:
    """Yield changed lines: quotes, expansions, prefixes, options, operators, redirections, odd characters, splices."""
    chosen = random.Random(seed)  # noqa: S311 - not for secrets
    pieces = [part for line in _PARTS.strip("\n").split("\n") for part in line.split("|")]
    calm = [
        " src",
        " -l",
        " a.py",
        " 'a $b* `c`'",
        ' "c (d)"',
        " -n 3",
        " 2>/dev/null",
        " 2>&1",
        " >/dev/null",
        " --",
        " ''",
    ]
    calm += [" | head", " && ls", "; pwd", " || true", " | wc -l", "  ", "\t", "~1", " ./src/../a", " -q", "'", '"']
    pieces += [
        " | head",
        " && ls",
        "; pwd",
        " || true",
        "|wc -l",
        "&& cd src && ",
        "\n",
        "\t",
        "  ",
        "A=1 ",
        "'",
        '"',
        "~1",
    ]
    pieces += [
        "\\\n",
        "\r",
        "\0",
        "\x0b",
        "\xa0",
        "\u2003",
        "\u200b",
        "\u2028",
        "\uff1b",
        "\u0301",
        "\u00e4",
        "<<EOF\nEOF\n",
    ]
    pieces += [
        " -o x",
        " --output=x",
        " -exec rm",
        " --pre x",
        " -c core.pager=x",
        "export A=1;",
        "exec ",
        "time ",
        "env ",
    ]
    for _ in range(count):
        line = chosen.choice(LINES)
        for _ in range(chosen.randint(0, 3)):
            kind, at = chosen.random(), chosen.randint(0, len(line))
            if kind < 0.5:
                at = chosen.choice([at, len(line), *(place for place, letter in enumerate(line) if letter == " ")])
                line = line[:at] + chosen.choice(calm if kind < 0.35 else pieces) + line[at:]
            elif kind < 0.6:
                line = line[:at] + line[at + chosen.randint(1, 4) :]
            elif kind < 0.7:
                line = line[:at] + chr(chosen.randint(0, 255)) + line[at:]
            elif kind < 0.85:
                line = line + chosen.choice([" | ", " && ", ";", "||", "&&", "|", " ; "]) + chosen.choice(LINES)
            else:
                words = line.split(" ")
                chosen.shuffle(words) if chosen.random() < 0.3 else words.insert(at % len(words), chosen.choice(words))
                line = " ".join(words)
        yield line


LONG = """git commit -m "$(cat <<'EOF'
Read two words (#12)

- a & b; c | d > e * ~ {f,g} [h](https://h.example/x)
EOF
)" && git status"""


def test_long_text_that_a_command_prints_is_one_word_in_every_shell(tmp_path: Path) -> None:
    commands = commands_of(LONG)
    assert commands is not None
    for shell in filter(shutil.which, ("bash", "dash", "zsh")):
        script = f"git() {{ printf '%s\\0' \"$@\"; }}\n{LONG}\n"
        done = subprocess.run(
            [shell, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60
        )
        assert done.stdout.split("\0")[:-1] == [word for command in commands for word in command.words[1:]], shell


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("<<'EOF'", "<<EOF"),
        ("a & b", "$(id)"),
        ("a & b", "`id`"),
        ("a & b", "it's"),
        ("a & b", "b)"),
        ("a & b", "\\a"),
        ("EOF\n)", "EOF\nid\n)"),
        ("cat <<", "cat a <<"),
        ('"$(cat', 'x"$(cat'),
        (')" &&', ')"x &&'),
    ],
)
def test_text_of_another_substitution_is_not_understood(part: str, other: str) -> None:
    assert commands_of(LONG.replace(part, other, 1)) is None


def a_workspace(folder: Path) -> Path:
    work = folder / "work"
    for name in (
        "src/a.py",
        "src/b.py",
        "tests/test_a.py",
        "README.md",
        "a",
        "a.py",
        ".env",
        "frontend/x",
        "backend/x",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    (work / ".git").mkdir()
    return work


def fresh(workspace: Workspace) -> Workspace:
    """Return the workspace with a fresh limit for paths."""
    return Workspace(str(workspace.root), Path("/nowhere/policy"))


GIT = HookCommands(runs=["git status|diff|log", "ls"], once_a_run=["git add <path>"]).programs
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


def found(line: str, folder: Path) -> bool:
    """Return whether a line is listed by `GIT`."""
    return listed(line, GIT, Workspace(str(folder), folder / "policy"), str(folder)) is not None


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
    assert found("git diff", repository)
    if scope == "--worktree":
        _git(repository, "config extensions.worktreeConfig true")
    for each in settings:
        name, _, value = each.replace("../more", str(repository / "more")).partition("=")
        subprocess.run(["git", "config", scope, name, value], cwd=repository, check=True, timeout=60)
    for command in ("git status", "git diff"):
        subprocess.run(command.split(), cwd=repository, check=False, capture_output=True, timeout=60)
    assert (repository / "ran").exists()
    assert [found(line, repository) for line in ("git diff", "'git' status", "ls")] == [
        False,
        False,
        True,
    ]


@pytest.mark.process
def test_only_git_commands_that_need_an_approval_may_run_hooks_of_the_workspace(repository: Path) -> None:
    _git(repository, "config core.hooksPath .hooks")
    assert found("git add a", repository)
    assert not found("git diff", repository)
    _git(repository, "config core.fsmonitor .hooks/x")
    assert not found("git add a", repository)


@pytest.mark.process
def test_git_command_is_not_listed_if_a_submodule_can_start_programs(repository: Path, tmp_path: Path) -> None:
    _git(tmp_path, "clone -q work other")
    _git(repository, f"-c protocol.file.allow=always submodule --quiet add {tmp_path}/other sub")
    subprocess.run(["git", "config", "filter.x.clean", "touch ran; cat"], cwd=repository / "sub", check=True)
    (repository / "sub/a").write_text("two\n")
    _git(repository, "status")
    assert (repository / "sub/ran").exists()
    assert not found("git status", repository)


@pytest.mark.process
def test_listed_git_command_counts_as_listed_in_ordinary_repositories(repository: Path, tmp_path: Path) -> None:
    _git(tmp_path, "clone -q work other")
    _git(tmp_path / "other", "checkout -qb topic --track origin/HEAD")
    _git(tmp_path / "other", "worktree add -q ../third")
    for name, value in {"user.name": "a", "core.pager": "delta", "filter.lfs.clean": "git-lfs clean -- %f"}.items():
        _git(tmp_path, f"config --global {name} {value.replace(' ', '_')}")
    (tmp_path / "none").mkdir()
    runs = {name: found("git log", tmp_path / name) for name in ("work", "other", "third", "none", "gone")}
    assert runs == {"work": True, "other": True, "third": True, "none": True, "gone": False}
