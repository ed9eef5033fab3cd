"""Programs that run what stands on their command line: a model must not write that part.

    [sh, -c, 'grep -e "$1" notes', name, "{word}"]     `sh` runs the script, and `{word}` is its parameter: admitted
    [nice, bash, -c, "{word}"]                         refused: the model would write the script

Read is the literal text before the first argument of a template. Of the programs that are known here and in
launchers.py, what cannot be told for sure is refused; every other program is taken for one that runs nothing.

Source: tool layer document, CLI tools ("never pass raw model output as shell arguments").
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from pdp.manifest.programs.launchers import KNOWN, NEVER, Danger, launched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.manifest.programs.launchers import Word

_VERSION: Final = re.compile(r"[-\d.]+$")
_SHELLS: Final = frozenset(("ash", "bash", "dash", "ksh", "mksh", "pdksh", "rbash", "sh", "yash", "zsh"))
_PYTHON: Final = frozenset(("pypy", "python", "pythonw"))
# What follows these is code; the rest of the command line is then the code's own, as far as it is no option.
_CODE: Final[dict[str, frozenset[str]]] = {
    "awk": frozenset(("-f", "--file")),
    "gawk": frozenset(("-f", "--file", "-e", "--source")),
    "mawk": frozenset(("-f",)),
    "nawk": frozenset(("-f",)),
    "bun": frozenset(),
    "deno": frozenset(),
    "csh": frozenset(),
    "fish": frozenset(("-c", "--command")),
    "julia": frozenset(("-e", "-E", "--eval", "--print")),
    "lua": frozenset(),
    "luajit": frozenset(),
    "node": frozenset(("-e", "-p", "-pe", "--eval", "--print")),
    "nodejs": frozenset(("-e", "-p", "-pe", "--eval", "--print")),
    "osascript": frozenset(("-e",)),
    "perl": frozenset(("-e", "-E")),
    "php": frozenset(("-r", "-f", "--run", "--file")),
    "pwsh": frozenset(),
    "Rscript": frozenset(("-e",)),
    "ruby": frozenset(("-e",)),
    "sed": frozenset(("-e", "-f", "--expression", "--file")),
    "gsed": frozenset(("-e", "-f", "--expression", "--file")),
    "tclsh": frozenset(),
    "tcsh": frozenset(),
}
# `deno run FILE`: their first operand is no script.
_SUBCOMMANDS: Final = frozenset(("bun", "deno"))
# They run the program that stands after their own options; the number is that of their operands before it.
_ALONE: Final = (
    "busybox", "catchsegv", "chrt", "command", "dbus-run-session", "doas", "env", "exec", "fakeroot",
    "firejail", "ionice", "ltrace", "nice", "nohup", "npx", "nsenter", "numactl", "proxychains", "rlwrap",
    "setpriv", "setsid", "stdbuf", "strace", "sudo", "systemd-run", "time", "toybox", "unbuffer", "unshare",
    "uvx", "valgrind", "xargs", "xvfb-run",
)  # fmt: skip
_AFTER_ONE: Final = ("chroot", "flock", "pipx", "taskset", "timeout", "uv")
_WRAPPERS: Final = dict.fromkeys(_ALONE, 0) | dict.fromkeys(_AFTER_ONE, 1)
# Words of everyday; they count where a program stands, and elsewhere only with a folder.
_WORDS: Final = (
    frozenset(("command", "exec", "julia", "node", "time", "timeout", "uv", "env", "nice", "bun", "flock", "fish"))
    | (NEVER - {"powershell", "runuser", "ssh", "vim"})
    | KNOWN
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_SPLITS: Final = re.compile(r"-[A-Za-z0-9]*S|--split-string")
_SHELL_FLAGS: Final = frozenset(
    ("--debugger", "--login", "--noediting", "--noprofile", "--norc", "--posix", "--restricted", "--verbose")
)
_ABSENT: Final = -1


def writes_script(words: Sequence[Word]) -> Danger | None:
    """Return of which program a model would write the script, the command or the program that it runs; None: none."""
    if all(word.literal for word in words):
        return None
    for at, word in enumerate(words):
        if not word.literal:
            continue
        name = _program(word.text)
        if at and "/" not in word.text and (name in _WORDS or (name in NEVER and _program(words[0].text) in KNOWN)):
            continue
        if at and name in _WRAPPERS and "/" not in word.text and name != "busybox":
            continue  # seen through from where a program stands
        rest = words[at + 1 :]
        found = None if all(one.literal for one in rest) else _danger(name, rest)
        if found is not None:
            return found
    return None


def _program(text: str) -> str:
    name = re.split(r"[/\\]", text)[-1].removesuffix(".exe")
    return name if name in _CODE or name in NEVER or name in KNOWN else _VERSION.sub("", name)


def _danger(name: str, rest: Sequence[Word]) -> Danger | None:
    """Look at a program with arguments among `rest`."""
    if name in KNOWN:
        found = launched(name, rest)
        return found if found is None or isinstance(found, Danger) else writes_script(found)
    if name in _WRAPPERS:
        at = _wrapped(name, _before_arguments(rest))
        inner = None if at == _ABSENT else _danger(_program(rest[at].text), rest[at + 1 :])
        return Danger(name) if at == _ABSENT else inner
    return Danger(name) if name in NEVER or not _has_own_script(name, rest) else None


def _before_arguments(rest: Sequence[Word]) -> list[str]:
    return [word.text for word in takewhile(lambda word: word.literal, rest)]


def _has_own_script(name: str, rest: Sequence[Word]) -> bool:
    literals = _before_arguments(rest)
    if name in _SHELLS:
        return _shell_has_script(literals)
    if name in _PYTHON:
        return _python_has_script(literals)
    if name in _CODE:
        return _has_script(name, literals, rest)
    return True


def _wrapped(name: str, literals: Sequence[str]) -> int:
    """Return where the program is that a wrapper runs. What follows an option may be the option's value."""
    operands, value, ended = _WRAPPERS[name], False, False
    for at, text in enumerate(literals):
        if not ended and text == "--":
            ended, value = True, False
        elif not ended and text.startswith("-"):
            if name == "env" and _SPLITS.match(text):
                return _ABSENT
            value = not (text.startswith("--") and "=" in text)
        elif value:
            value = False
        elif _ASSIGNMENT.match(text):
            continue
        elif operands:
            operands -= 1
        else:
            return at
    return _ABSENT


def _shell_has_script(literals: Sequence[str]) -> bool:
    """Return whether script and `$0` are there, or a file with a script: what follows them are parameters."""
    items, commands = list(literals), False
    while items and items[0][:1] in {"-", "+"}:
        option = items.pop(0)
        if option in {"-", "--"}:
            break
        if option.startswith("--"):
            values = 0 if option in _SHELL_FLAGS or "=" in option else 1
        else:
            commands = commands or (option[0] == "-" and "c" in option)
            values = sum(letter in "oO" for letter in option)
        del items[:values]
    return len(items) >= (2 if commands else 1)


def _python_has_script(literals: Sequence[str]) -> bool:
    items = list(literals)
    while items and items[0].startswith("-") and items[0] != "-":
        option = items.pop(0)
        if option == "--":
            break
        code = None if option.startswith("--") else re.match(r"-[A-VYZabd-ln-z]*[cm](.*)", option, re.DOTALL)
        if code:
            return bool(code[1]) or bool(items)
        if option in {"-W", "-X", "--check-hash-based-pycs"}:
            del items[:1]
    return bool(items) and items[0] != "-"


def _has_script(name: str, literals: Sequence[str], rest: Sequence[Word]) -> bool:
    """Return whether code is there, and no argument after it can be an option that brings in more of it."""
    operands = 2 if name in _SUBCOMMANDS else 1
    option, ended, coded = "", False, False
    for text in literals:
        if not ended and text == "--":
            ended, option = True, ""
        elif not ended and text.startswith("-"):
            option = text
        elif option:
            coded = coded or option in _CODE[name]
            option = ""
        else:
            operands -= 1
    found = coded or operands <= 0
    flagged = any(word.text.startswith("-") for word in rest if not word.literal)
    return found and not option and (ended or not flagged)
