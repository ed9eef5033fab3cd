"""The Rego files that make up a policy: found in the baseline's folder and in those of the user."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdp.documents import decode, read_bytes
from pdp.errors import UsageError
from pdp.installed import packaged

DECISION: Final = "authz/decision.rego"
_MAX_BYTES: Final = 1024 * 1024  # of a module
"""The module by which a folder is known to be the baseline."""

_TEST: Final = "_test.rego"
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Module:
    """One Rego file: where it was found, its text with plain line feeds, and whether it is the user's."""

    file: Path
    text: str
    custom: bool


def baseline_policies_path() -> Path:
    """Return the baseline's policy folder: packaged beside the code, or the checkout's `policies/`."""
    return packaged("policies")


def baseline_folder(folders: Sequence[Path]) -> Path:
    """Return the folder that holds the baseline."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a folder", hint="name folders with Rego files")
    baselines = [folder for folder in folders if (folder / DECISION).is_file()]
    if len(baselines) != 1:
        wrong = "none of the folders has" if not baselines else "more than one folder has"
        raise UsageError(f"{wrong} {DECISION}", hint="name the baseline's folder once, and your own beside it")
    return baselines[0]


def collect(baseline: Path, folders: Sequence[Path], *, tests: bool = False) -> dict[str, Module]:
    """Return the modules of all `folders` by their path in the bundle, sorted.

    Those of the one that is the `baseline` stand under its `authz`, the user's anywhere; a user's path is the one in
    its folder, with `custom/` before it. With `tests`, the unit tests (`…_test.rego`) alone, of which there may be
    none; else they are left out.

    Raises:
        UsageError: a file cannot be read, is too large, or has a name that a bundle cannot have; a folder has none,
            or a link to another folder.
    """
    modules: dict[str, Module] = {}
    for folder in folders:
        custom = folder != baseline
        top = folder if custom else folder / "authz"
        every = sorted(_rego_files(top), key=lambda file: file.relative_to(folder).as_posix())
        files = [file for file in every if file.name.endswith(_TEST) == tests]
        if not files and not tests:
            only = f"only unit tests (`…{_TEST}`)" if every else "no Rego file"
            raise UsageError(f"{folder}: {only} in it", hint="name folders with Rego files")
        for file in files:
            parts = file.relative_to(folder).parts
            if not all(_FILE.fullmatch(part) for part in parts):
                raise UsageError(
                    f"{file}: not a name for a bundle",
                    hint="use letters, digits, `_`, `-` and `.`, without a `.` first",
                )
            path = "/".join(("custom", *parts) if custom and parts[0] != "custom" else parts)
            if path in modules:
                raise UsageError(
                    f"{file}: {modules[path].file} would have the same place in the bundle",
                    hint="name each folder once, and files otherwise that have one path in two of them",
                )
            modules[path] = Module(file, _text(file), custom)
    return dict(sorted(modules.items()))


def modules_of_bundle(name: str, texts: Mapping[str, str]) -> dict[str, Module]:
    """Return the modules of a bundle by their path; each has `NAME!PATH` for its file."""
    return {path: Module(Path(f"{name}!{path}"), text, path.startswith("custom/")) for path, text in texts.items()}


def _rego_files(top: Path) -> Iterator[Path]:
    """Every Rego file below a folder. What could be one and is passed over would be a concern lost: it is an error."""
    for at, folders, names in os.walk(top, onerror=_refuse):
        for name in folders:
            if Path(at, name).is_symlink():
                raise UsageError(
                    f"{Path(at, name)}: a link to a folder, which nobody follows",
                    hint="put the folder itself here, or name the one that the link leads to beside this one",
                )
        for name in names:
            if not name.lower().endswith(".rego"):
                continue
            file = Path(at, name)
            if not name.endswith(".rego"):
                raise UsageError(f"{file}: not a name that OPA knows Rego by", hint="let it end in `.rego`")
            if not file.is_file():
                raise UsageError(f"{file}: not a file", hint="if it is a link, its target is missing")
            yield file


def _refuse(error: OSError) -> None:
    raise UsageError(f"{error.filename}: cannot be read: {error.strerror}", hint="let its rights admit you") from error


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a folder, under paths below it."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")


def _text(file: Path) -> str:
    # Line ends differ between checkouts of one source, and must not make another bundle of it.
    content = read_bytes(file)
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{file}: larger than {_MAX_BYTES} bytes", hint="is this Rego?")
    return decode(content, str(file)).replace("\r\n", "\n")
