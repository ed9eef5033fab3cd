"""The region of a path: in the workspace, outside of the workspace, or guarded."""

import os
import re
import sys
from enum import IntEnum
from pathlib import Path
from typing import Final
from unicodedata import category, normalize
from urllib.parse import unquote, urlsplit

from pdp.hooks.call import HookLimitError
from pdp.hooks.home import default_home

_MOST: Final = 4096  # The maximum number of characters of a path, and of words in a command.
_LONGEST: Final = 64 * 1024  # The maximum number of characters of a command.
_MOST_PARTS: Final = 256  # The maximum number of components of one path, including those of the working folder.
# The maximum number of components of all paths in a call, because each component is looked up on disk.
_MOST_LOOKS: Final = 32_768
# Clients and git read from these files which programs to start.
_NAMES: Final = (
    r"\.(claude(.json|(?!/worktrees/))|codex|copilot|cursor|gemini|github/+(hooks|copilot|lsp.json|mcp.json)"
    r"|vscode/+(mcp|settings).json|mcp.json|pdp-hook.yaml|gitconfig|git{})"
)
_STARTING: Final = re.compile("/" + _NAMES.format("") + "/")
_NAMED: Final = re.compile(r"(?<![\w.-])(-\w*m)?(pdp|" + _NAMES.format("/+(hooks|config)") + r")(?![\w-])")
# A word of a shell command, with its quotes. A quoted word may contain spaces.
_SHELL_WORD: Final = re.compile(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s;|&<>()'"\\])+""", re.DOTALL)
_CONTROL: Final = re.compile(r"[\0-\x1f\x7f]")
# Agents need consent to write hidden files, because most of them configure programs or are run by them. The listed ones
# are exceptions.
_HIDDEN: Final = re.compile(
    r"/\.(?!((git|docker|npm|eslint|prettier|stylelint|helm)ignore|(git)?keep|editorconfig|mailmap|claude/worktrees)/)"
)
# Files that are not hidden but are run without an action of the user: in CI, editors, git hooks or direnv.
_STARTED: Final = re.compile(
    r"/(jenkinsfile[^/]*|(azure-pipelines|bitbucket-pipelines|appveyor|cloudbuild|buildspec|codemagic|codefresh|bitrise"
    r"|zuul|wercker|netlify|vercel|amplify|heroku|lefthook|captainhook|grumphp|prek|mise|devfile|flake|shell|devenv"
    r"|devbox)([^a-z/][^/]*)?\.(ya?ml|toml|json|nix)|[^/]+\.(code-workspace|iml"
    r"|sublime-project)|husky|git-?hooks)/"
)
_SECRET: Final = re.compile(
    r"/(\.(ssh|aws|gnupg|kube|docker/config.json)/|(\.(env(?!\.(example|sample|template|dist|defaults?)/)[^/]*|netrc|pgpass|npmrc|pypirc"
    r"|git-credentials|htpasswd|dockercfg|vault-token|yarnrc[^/]*)|id_(rsa|dsa|ecdsa|ed25519)[^/.]*|credentials(\.(json|ya?ml|toml|ini))?"
    r"|[^/]+\.(env|pem|key|p12|pfx|jks|keystore|kdbx|tfvars|tfstate|ppk|ovpn)|kubeconfig[^/]*|secrets?\.(json|ya?ml|toml|ini)"
    r"|[^/]*service[-_]?account[^/]*\.json)/$)"
)


class Region(IntEnum):
    """The regions of the file system, the most sensitive last.

    OUTSIDE includes files in the workspace that need the user's consent, such as secrets. GUARD contains files that
    protect the user, or determine which programs start.
    """

    INSIDE = 0
    OUTSIDE = 1
    GUARD = 2


class Workspace:
    """The workspace around a client's working folder `cwd`, an absolute path. `home` is the hook policy's folder."""

    def __init__(self, cwd: str, home: Path) -> None:
        self._left = _MOST_LOOKS
        self._spend(cwd)
        folder, person = Path(os.path.realpath(cwd)), Path.home().resolve()
        self._cwd, self.folders = cwd, [folder, *folder.parents]
        # The default folder of the hooks is inside the folder that contains the policies of the gateway, so that folder
        # is protected too.
        self._policies = tuple(folded(os.path.realpath(each)) for each in (home, default_home().parent))
        # A missing folder cannot be a workspace, and neither can a folder that contains all files of the user.
        own = [each for each in self.folders if folder.is_dir() and not person.is_relative_to(each)]
        self.root = next((each for each in own if _is_own(f"{each}/.git")), own[0] if own else None)

    def region(self, path: str, *, writes: bool = False, below: bool = False) -> Region:
        """Return the region of a path; with `below`, of the path and all files in it. Raises `HookLimitError`."""
        if (trimmed := _trimmed(path)) != path.strip(" \t\r\n"):
            return max(Region.OUTSIDE, self.region(trimmed, writes=writes, below=below))
        if not trimmed:
            return Region.OUTSIDE
        paths = self.readings(path)
        if writes and any(map(_is_repository, {each[: at.start()] for each in paths for at in re.finditer("/", each)})):
            return Region.GUARD
        is_inside = all(f"{each}/".startswith(f"{self.root}/") for each in paths)
        for each in map(folded, (*paths, os.path.normpath(Path(self._cwd, path)))):
            is_above = below and any(policy.startswith(each) for policy in self._policies)
            is_written = writes and (_STARTING.search(each) or each.startswith(_INSTALLED))
            if each.startswith(self._policies) or is_above or is_written:
                return Region.GUARD
            inner = self._inner(each)
            is_inside &= not ((_HIDDEN.search(inner) or _STARTED.search(inner)) if writes else _SECRET.search(inner))
        return Region.INSIDE if is_inside else Region.OUTSIDE

    def is_secret(self, path: str) -> bool:
        """Return whether a path, or the target of a link, is named like a file with secrets: `.env`, `*.pem`, `.ssh/x`.

        The path may be inside or outside of the workspace. Raises `HookLimitError`.
        """
        return any(_SECRET.search(self._inner(each)) for each in self.names(path))

    def words(self, line: str) -> set[str]:
        """Return the words of a command line as written, before a shell expands them."""
        words = set(re.split(r"[\s;|&<>(){}=,:`\0]+", _plain(line)))
        if len(line) > _LONGEST or len(words) > _MOST:
            raise HookLimitError(f"the command has more than {_LONGEST:,} characters, or {_MOST:,} words")
        quoted = {_plain(word) for word in _SHELL_WORD.findall(line)}
        words |= quoted | {re.split("[=:]", word, maxsplit=1)[-1] for word in quoted}
        # In words such as `-ffile` and `-d@file`, the path follows the option.
        words |= {re.sub(r"^(-\w)?(.*@)?", "", word, flags=re.DOTALL) for word in words}
        return {word if len(word) <= _MOST else os.path.normpath(word)[:_MOST] for word in words} - {""}

    def names_guard(self, line: str, words: set[str]) -> bool:
        """Return whether a command line, or one of its words, names a path in the region GUARD."""
        guarded = (*self._policies, *_INSTALLED)
        words = {word for word in words if "/" in word or word[:1] == "~" or os.path.lexists(f"{self._cwd}/{word}")}
        paths = (folded(path) for word in words for path in self.readings(word))
        return _NAMED.search(folded(_plain(line))) is not None or any(path.startswith(guarded) for path in paths)

    def has_foreign_repository(self, folder: str = "") -> bool:
        """Return whether git in `folder` may use a repository whose settings the agent could have written."""
        real = Path(os.path.realpath(Path(self._cwd, folder)))
        folders = [each for each in (real, *real.parents) if self.root in (each, *each.parents)]
        return any(os.path.lexists(each / "HEAD") for each in folders)

    def readings(self, path: str) -> set[str]:
        """Return every absolute path that a client or tool may take a text to mean."""
        texts = {path, path.strip()}
        texts |= {os.path.expanduser(text) for text in texts}  # noqa: PTH111 - without errors
        if path.strip()[:5].lower() == "file:":
            texts |= {unquote(urlsplit(path).path), unquote(path.strip()[5:])}
        joined = {os.path.join(self._cwd, text) for text in texts}  # noqa: PTH118 - `Path` would drop parts
        # Some programs remove `..` from a path before they follow links, and others afterwards, so both results are
        # checked.
        joined |= set(map(os.path.normpath, joined))
        self._spend(*joined)
        return set(map(os.path.realpath, joined))

    def names(self, path: str) -> set[str]:
        """Return the files that a text may name, and the links on the way to these files, all `folded`."""
        if not (path := _trimmed(path)):
            return set()
        plain = Path(os.path.normpath(self.folders[0] / os.path.expanduser(path)))  # noqa: PTH111 - without errors
        link = f"{os.path.realpath(plain.parent)}/{plain.name}"
        return set(map(folded, (*self.readings(path), str(plain), link)))

    def _inner(self, path: str) -> str:
        """Return a `folded` path from the folder of the workspace, or unchanged if it is elsewhere."""
        return f"/{path.removeprefix(folded(str(self.root))).removeprefix(folded(self._cwd))}"

    def _spend(self, *paths: str) -> None:
        parts = [path.count("/") for path in paths]
        self._left -= sum(parts)
        if max(parts) > _MOST_PARTS or self._left < 0:
            raise HookLimitError(f"a path has more than {_MOST_PARTS} parts, or all paths more than {_MOST_LOOKS:,}")


def _is_own(path: str) -> bool:
    return os.path.lexists(path) and os.lstat(path).st_uid == os.geteuid()


def _is_repository(folder: str) -> bool:
    """Return whether a folder is a git directory, such as `.git`, whatever its name."""
    return os.path.lexists(f"{folder}/HEAD") and os.path.lexists(f"{folder}/objects")


def _trimmed(path: str) -> str:
    """Return a path without the characters that some programs remove, or an empty text if the path is too long."""
    kept = [at for at, letter in enumerate(path) if letter.isprintable() and letter != " "]
    path = _CONTROL.sub("", path[kept[0] : kept[-1] + 1]) if kept else ""
    return path if len(os.path.normpath(path)) <= _MOST else ""


def _plain(line: str) -> str:
    line = re.sub(r"\$(HOME\b|\{HOME\})", "~", re.sub(r"\$(PWD\b|\{PWD\})|~\+", ".", line))
    return re.sub(r"\\\n|['\"\\]|\$(?=['\"])", "", line)


def folded(path: str) -> str:
    """Return a path as a case-insensitive file system compares it, with a slash at the end."""
    letters = (letter for letter in normalize("NFKC", path) if category(letter) != "Cf")
    return "".join(letters).casefold().rstrip("/") + "/"


_PLACES: Final = [str(Path(__file__).parents[1]), *([sys.prefix] if sys.prefix != sys.base_prefix else [])]
_INSTALLED: Final = tuple(folded(os.path.realpath(place)) for place in _PLACES)
