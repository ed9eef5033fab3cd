"""Programs of everyday that can be told to run another one, and how: the part of their command line that says so.

    [find, "{dir}", -exec, "{tool}", ";"]     refused: the model would choose the program
    [find, "{dir}", -exec, wc, -l, "{}", ";"] admitted: `wc` is stated
    [git, "{command}"]                        refused: the first operand says what git does
    [git, log, "--max-count={count}"]         admitted

Known are the programs named here. What stands nowhere here is taken for one that runs nothing.

Source: tool layer document, CLI tools ("never pass raw model output as shell arguments").
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Word(NamedTuple):
    """One item of a template: its text, and whether it is all literal; `text` is then as the program gets it."""

    text: str
    literal: bool


class Danger(NamedTuple):
    """What a model would write: the program, and the option of it; empty: what the program itself runs."""

    program: str
    option: str = ""


class _Launcher(NamedTuple):
    """How a program is told to run another one.

    Attributes:
        options: whose value is a command, code, a file of such, or a file that a download is written to.
        valued: options whose value is none of that; looked at only where the first operand says what is done.
        starts: the first operands that run, build or install what stands behind them; None: no operand does.
    """

    options: tuple[str, ...] = ()
    valued: tuple[str, ...] = ()
    starts: frozenset[str] | None = None


NEVER: Final = frozenset(
    (
        "ansible", "ansible-playbook", "ant", "at", "batch", "bmake", "bundle", "bunx", "capsh",
        "cmake", "cmd", "composer", "convert", "crontab", "dialog", "ed", "emacs", "emacsclient", "entr", "eval", "ex",
        "expect", "fzf", "gdb", "gem", "gmake", "gnuplot", "gradle", "gvim", "just", "less", "lldb", "m4", "magick",
        "mail", "mailx", "make", "mogrify", "mongosh", "more", "most", "mutt", "mvn", "nano", "ninja", "npm",
        "nvim", "octave", "openvpn", "parallel", "perf", "pip", "pnpm", "powershell", "rake", "run-parts",
        "runuser", "rview", "rvim", "screen", "script", "socat", "sqlite3", "ssh", "start-stop-daemon", "su", "tmux",
        "vi", "view", "vim", "vimdiff", "vimx", "watch", "yarn",
    )
)  # fmt: skip
"""They hand their operands to a shell, here or elsewhere, read a whole language of commands, or run what they name."""

_TAR: Final = _Launcher(
    (
        "-F", "-I", "--checkpoint-action", "--info-script", "--new-volume-script", "--rmt-command", "--rsh-command",
        "--to-command", "--use-compress-program",
    )
)  # fmt: skip
_FIND: Final = _Launcher()
_COMPILER: Final = _Launcher(("-B", "-fplugin", "-specs", "-wrapper", "--specs"))
_DIFFERS: Final = _Launcher(("--diff-program",))
_SECURE_COPY: Final = _Launcher(("-D", "-F", "-S", "-o"))
_PSQL: Final = _Launcher(("-c", "-f", "-o", "--command", "--file", "--output"))
_MYSQL: Final = _Launcher(("-e", "--execute", "--init-command", "--pager", "--plugin-dir", "--defaults-file"))
_CONNECTS: Final = _Launcher(("-c", "-e", "--exec", "--lua-exec", "--sh-exec"))
_CONTAINERS: Final = _Launcher(
    ("-c", "--config", "--entrypoint"),
    ("-H", "-l", "--connection", "--context", "--host", "--log-level"),
    frozenset(
        (
            "build", "builder", "buildx", "compose", "container", "create", "debug", "exec", "import", "kube", "load",
            "machine", "play", "plugin", "run", "service", "stack",
        )
    ),
)  # fmt: skip
_CLUSTER: Final = _Launcher(
    ("--kubeconfig",),
    ("-n", "-s", "-v", "--as", "--cluster", "--context", "--namespace", "--request-timeout", "--server", "--user"),
    frozenset(("apply", "config", "cp", "create", "debug", "edit", "exec", "patch", "plugin", "replace", "run", "set")),
)
_COMMANDED: Final = _Launcher(starts=frozenset())
_LAUNCHERS: Final[dict[str, _Launcher]] = {
    "ack": _Launcher(("--ackrc", "--pager")),
    "ag": _Launcher(("--pager",)),
    "apt": _Launcher(("-c", "-o", "--config-file", "--option"), starts=frozenset(("edit-sources", "install"))),
    "apt-get": _Launcher(("-c", "-o", "--config-file", "--option"), starts=frozenset(("build-dep", "install"))),
    "aws": _COMMANDED,
    "bat": _Launcher(("--pager",)),
    "brew": _COMMANDED,
    "bsdtar": _TAR,
    "cargo": _Launcher(("--config",), starts=frozenset(("bench", "build", "install", "run", "test"))),
    "cc": _COMPILER,
    "clang": _COMPILER,
    "clang++": _COMPILER,
    "cpio": _Launcher(("--rsh-command",)),
    "curl": _Launcher(
        ("-D", "-K", "-c", "-o", "--config", "--cookie-jar", "--dump-header", "--engine", "--output", "--output-dir")
    ),
    "diff3": _DIFFERS,
    "docker": _CONTAINERS,
    "fd": _FIND,
    "fdfind": _FIND,
    "find": _FIND,
    "ftp": _CONNECTS,
    "g++": _COMPILER,
    "gcc": _COMPILER,
    "gcloud": _COMMANDED,
    "gh": _Launcher(starts=frozenset(("alias", "codespace", "config", "extension"))),
    "git": _Launcher(
        (
            "-c", "-x", "--config", "--config-env", "--exec", "--exec-path", "--extcmd", "--open-files-in-pager",
            "--receive-pack", "--template", "--upload-pack",
        ),
        ("-C", "--git-dir", "--namespace", "--work-tree"),
        frozenset(
            (
                "bisect", "config", "daemon", "difftool", "filter-branch", "for-each-repo", "help", "hook", "instaweb",
                "mergetool", "remote-ext", "remote-fd", "send-email", "shell", "submodule", "upload-pack",
            )
        ),
    ),
    "go": _Launcher(("-exec", "-toolexec"), starts=frozenset(("generate", "get", "install", "run", "test", "tool"))),
    "gtar": _TAR,
    "helm": _Launcher(("--post-renderer",), starts=frozenset(("install", "plugin", "upgrade"))),
    "hg": _Launcher(("--config", "--ssh", "--remotecmd"), ("-R", "--cwd", "--repository"), frozenset(("serve",))),
    "ip": _Launcher(("-b", "-batch"), ("-f", "-n", "-family", "-netns"), frozenset(("netns", "vrf"))),
    "kubectl": _CLUSTER,
    "man": _Launcher(("-C", "-H", "-P", "--config-file", "--html", "--pager")),
    "mariadb": _MYSQL,
    "mysql": _MYSQL,
    "nc": _CONNECTS,
    "ncat": _CONNECTS,
    "nerdctl": _CONTAINERS,
    "netcat": _CONNECTS,
    "nmap": _Launcher(("--datadir", "--script", "--script-args")),
    "oc": _CLUSTER,
    "openssl": _Launcher(("-config", "-engine", "-provider", "-provider-path"), starts=frozenset(("engine",))),
    "pandoc": _Launcher(("-F", "-L", "-d", "--defaults", "--filter", "--lua-filter", "--pdf-engine")),
    "podman": _CONTAINERS,
    "psql": _PSQL,
    "redis-cli": _Launcher(
        ("--eval",), ("-a", "-h", "-n", "-p", "-s", "-u"), frozenset(("EVAL", "config", "eval", "module"))
    ),
    "rg": _Launcher(("--hostname-bin", "--pre")),
    "rpm": _Launcher(("-D", "-E", "--define", "--eval", "--load", "--macros", "--pipe", "--rcfile")),
    "rsync": _Launcher(("-M", "-e", "--config", "--remote-option", "--rsh", "--rsync-path")),
    "scp": _SECURE_COPY,
    "sdiff": _DIFFERS,
    "sftp": _SECURE_COPY,
    "sort": _Launcher(("--compress-program",)),
    "split": _Launcher(("--filter",)),
    "svn": _Launcher(
        ("--config-dir", "--config-option", "--diff-cmd", "--diff3-cmd", "--editor-cmd"), starts=frozenset()
    ),
    "systemctl": _Launcher(starts=frozenset(("edit", "link", "set-environment"))),
    "tar": _TAR,
    "tcpdump": _Launcher(("-z",)),
    "terraform": _COMMANDED,
    "wget": _Launcher(
        (
            "-O", "-P", "-a", "-e", "-o", "--append-output", "--config", "--directory-prefix", "--execute",
            "--output-document", "--output-file", "--use-askpass",
        )
    ),
    "zip": _Launcher(("-TT", "--unzip-command")),
}  # fmt: skip
_EXECUTES: Final = frozenset(("-X", "-exec", "-execdir", "-ok", "-okdir", "-x", "--exec", "--exec-batch"))
_END: Final = "--"

KNOWN: Final = frozenset(_LAUNCHERS)
"""The programs with a place in their command line that says what they run."""


def launched(name: str, rest: Sequence[Word]) -> Danger | Sequence[Word] | None:
    """Return what the arguments of a known program would choose; or the command line that it runs; None: nothing.

    Args:
        name: one of `KNOWN`.
        rest: what stands after it.
    """
    launcher = _LAUNCHERS[name]
    if launcher is _FIND:
        return _executed(name, rest)
    for at, word in enumerate(rest):
        option = _option(word.text, launcher.options)
        if option and not (word.literal and (_has_value(word.text, option) or _is_literal(rest, at + 1))):
            return Danger(name, option)
    return None if launcher.starts is None else _commanded(name, launcher, launcher.starts, rest)


def _has_value(text: str, option: str) -> bool:
    """Whether the value stands in the item itself: after `=`, or right after the option's letter."""
    is_letter = len(option) == len("-x") and not text.startswith(_END)
    return "=" in text or (is_letter and not text.endswith(option[1]))


def _is_literal(rest: Sequence[Word], at: int) -> bool:
    return at >= len(rest) or rest[at].literal


def _executed(name: str, rest: Sequence[Word]) -> Danger | Sequence[Word] | None:
    for at, word in enumerate(rest):
        if word.text.partition("=")[0] not in _EXECUTES:
            continue
        command = tuple(takewhile(lambda one: one.text not in {";", "+"}, rest[at + 1 :]))
        if not word.literal or not command or not command[0].literal:
            return Danger(name, word.text.partition("=")[0])
        if not all(one.literal for one in command):
            return command
    return None


def _commanded(name: str, launcher: _Launcher, starts: frozenset[str], rest: Sequence[Word]) -> Danger | None:
    """The first operand says what is done: it has to be stated, and to be nothing that runs what follows it."""
    known, skipped = (*launcher.options, *launcher.valued), False
    for at, word in enumerate(rest):
        if skipped:
            skipped = False
        elif word.text.startswith("-") and word.text != _END:
            # Without its value, a flag of an argument may leave what follows as the operand.
            skipped = word.literal and "=" not in word.text and word.text in known
        elif word.text != _END:
            runs = not word.literal or word.text in starts
            return Danger(name) if runs and not all(one.literal for one in rest[at:]) else None
    return None


def _option(text: str, options: Sequence[str]) -> str:
    """Return the option that a text is, or begins with: also abbreviated, with its value, or among other letters."""
    if not text.startswith("-") or text == _END:
        return ""
    stated = text.partition("=")[0]
    for option in options:
        if stated == option or (text.startswith("--") and len(stated) > len(_END) and option.startswith(stated)):
            return option
        letters = len(option) == len("-x") and not text.startswith("--")
        if letters and option[1] in stated:
            return option
    return ""
