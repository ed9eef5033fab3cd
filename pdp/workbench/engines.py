"""What engines decide by, and which ones are run: policies are compiled once and stored. `project/` opens engines."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from pdp import __version__
from pdp.audit.file import replace_file
from pdp.engine.bundle.file import Bundle, baseline_bundle_path, read_bundle
from pdp.engine.protocol import ENGINES, EngineName
from pdp.errors import BundleError, UsageError
from pdp.json import canonical, digest
from pdp.workbench.opa.modules import Module, baseline_folder, baseline_policies_path, collect
from pdp.workbench.opa.program import OPA_VERSION, needed_opa

ENGINE_TIMEOUT: Final = 10.0
"""Default time that an engine has for one answer where scenarios are run and bundles compared, in seconds.

More than an enforcement point waits, so that a machine which is busy makes no policy red.
"""

LATE: Final = "give the engine more time with --engine-timeout, or look for a rule that does not end"
"""What to do about an engine that has not answered in that time."""

_MOST_STORED: Final = 32
_READ_BESIDE: Final = ("capabilities.json", "schemas/request.json", "config/data.json")


def engines_named(name: str) -> tuple[EngineName, ...]:
    """Return the engines to run on: one by its name, or `both`, which have to agree."""
    named = tuple(engine for engine in ENGINES if name in (engine, "both"))
    if not named:
        raise UsageError(f"no engine is called {name!r}", hint=f"name one of {', '.join(ENGINES)}, both")
    return named


def policy_bundle(policies: Sequence[Path] = ()) -> Bundle:
    """Return the bundle of the baseline and these folders, compiled now or before; alone, the released baseline.

    In a checkout whose policies are newer than its released bundle, the policies decide: they are what reports show.

    Raises:
        UsageError: a folder cannot be used, or OPA is needed and not there.
        FileFaultsError: a module is faulty.
        BundleError: the bundle cannot be used.
    """
    baseline = baseline_policies_path()
    folders = [baseline, *policies]
    baseline_folder(folders)
    modules = collect(baseline, folders)
    if not policies:
        released = read_bundle(baseline_bundle_path())
        if released.modules == {path: module.text for path, module in modules.items()}:
            return released
    unit_tests = collect(baseline, folders, tests=True) if policies else {}
    stored = user_cache_path("tool-pdp") / "compiled" / f"{_sources(baseline, {**modules, **unit_tests})}.tar.gz"
    with suppress(BundleError):  # not there, half written, or by another version: it is made
        return read_bundle(stored)
    from pdp.workbench.bundles.build import compile_bundle  # noqa: PLC0415 - only what compiles needs it

    packed = compile_bundle(policies=folders, release=1, opa=needed_opa("compiling policies"))
    _store(stored, packed)
    return read_bundle(packed)


def _sources(baseline: Path, modules: Mapping[str, Module]) -> str:
    """A name for all that the compiled bundle depends on."""
    beside = [(baseline / name).read_text(encoding="utf-8") for name in _READ_BESIDE]
    texts = {path: digest(module.text.encode()) for path, module in modules.items()}
    return digest(canonical([__version__, OPA_VERSION, texts, beside])).removeprefix("sha256:")


def _store(path: Path, packed: bytes) -> None:
    with suppress(OSError):  # a cache that cannot be written only takes time
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, packed, mode=0o600)
        for old in sorted(path.parent.glob("*.tar.gz"), key=lambda bundle: bundle.stat().st_mtime)[:-_MOST_STORED]:
            old.unlink(missing_ok=True)
