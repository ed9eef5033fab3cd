"""The Rego files of a policy, found in the baseline's folder and the user's folders."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdp.documents import decode, read_bytes
from pdp.errors import UsageError
from pdp.installed import packaged

DECISION: Final = "authz/decision.rego"  # the module that identifies the baseline's folder
_MAX_BYTES: Final = 1024 * 1024  # the maximum size of a module in bytes

_TEST: Final = "_test.rego"
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Module:
    """One Rego file: its path, its text with line feeds only, and whether it belongs to the user (`custom`)."""

    file: Path
    text: str
    custom: bool


def baseline_policies_path() -> Path:
    """Return the baseline's policy folder: packaged with the code, or `policies/` in a checkout."""
    return packaged("policies")


def baseline_folder(folders: Sequence[Path]) -> Path:
    """Return the folder that contains the baseline. Raises `UsageError` unless exactly one of `folders` contains it."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a folder", hint="give folders with Rego files")
    baselines = [folder for folder in folders if (folder / DECISION).is_file()]
    if len(baselines) != 1:
        wrong = "none of the folders has" if not baselines else "more than one folder has"
        raise UsageError(f"{wrong} {DECISION}", hint="give the baseline's folder once, and your own folders")
    return baselines[0]


def collect(baseline: Path, folders: Sequence[Path], *, tests: bool = False) -> dict[str, Module]:
    """Return the modules of all `folders`, sorted by their path in the bundle.

    The modules of the `baseline` are in its subfolder `authz`. A user's modules may be anywhere in a folder, and their
    paths get the prefix `custom/`. With `tests`, unit tests (`…_test.rego`) are returned, otherwise all others. Raises
    `UsageError` if a file is unreadable or not allowed in a bundle, or a folder has no module, or a link to a folder.
    """
    modules: dict[str, Module] = {}
    for folder in folders:
        custom = folder != baseline
        top = folder if custom else folder / "authz"
        every = sorted(_rego_files(top), key=lambda file: file.relative_to(folder).as_posix())
        files = [file for file in every if file.name.endswith(_TEST) == tests]
        if not files and not tests:
            only = f"only unit tests (`…{_TEST}`)" if every else "no Rego file"
            raise UsageError(f"{folder}: {only} in it", hint="give folders with Rego files")
        for file in files:
            parts = file.relative_to(folder).parts
            if not all(_FILE.fullmatch(part) for part in parts):
                raise UsageError(
                    f"{file}: the name is not allowed in a bundle",
                    hint="use letters, digits, `_`, `-` and `.`, and do not start with `.`",
                )
            path = "/".join(("custom", *parts) if custom and parts[0] != "custom" else parts)
            if path in modules:
                raise UsageError(
                    f"{file}: has the same path in the bundle as {modules[path].file}",
                    hint="give each folder once, and rename files with the same path in two folders",
                )
            modules[path] = Module(file, _text(file), custom)
    return dict(sorted(modules.items()))


def modules_of_bundle(name: str, texts: Mapping[str, str]) -> dict[str, Module]:
    """Return the modules of the bundle `name` by path. In messages, their files are called `NAME!PATH`."""
    return {path: Module(Path(f"{name}!{path}"), text, path.startswith("custom/")) for path, text in texts.items()}


def _rego_files(top: Path) -> Iterator[Path]:
    """Yield every Rego file in a folder and its subfolders. Raise `UsageError` for a file that OPA would not load."""
    for at, folders, names in os.walk(top, onerror=_raise_unreadable):
        for name in folders:
            if Path(at, name).is_symlink():
                raise UsageError(
                    f"{Path(at, name)}: a link to a folder, which is not followed",
                    hint="put the folder itself here, or give the link's target as another folder",
                )
        for name in names:
            if not name.lower().endswith(".rego"):
                continue
            file = Path(at, name)
            if not name.endswith(".rego"):
                raise UsageError(f"{file}: OPA does not load a Rego file of this name", hint="end the name in `.rego`")
            if not file.is_file():
                raise UsageError(f"{file}: not a file", hint="if it is a link, its target is missing")
            yield file


def _raise_unreadable(error: OSError) -> None:
    raise UsageError(f"{error.filename}: cannot be read: {error.strerror}", hint="check its permissions") from error


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder. `texts` maps each file's path in the folder to its content."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")


def _text(file: Path) -> str:
    # Line ends are normalised, because they differ between checkouts of the same source but must not change the bundle.
    content = read_bytes(file)
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{file}: larger than {_MAX_BYTES} bytes", hint="check that this is a Rego file")
    return decode(content, str(file)).replace("\r\n", "\n")
