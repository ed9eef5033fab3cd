"""Compile policy folders, data and manifests to a bundle. The same sources give the same bytes on any machine."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from pdp.audit.file import replace_file
from pdp.engine.bundle.file import Bundle, baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.data import merged_data, read_data
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import BundleError, FileFaultsError, UsageError
from pdp.json import MAX_NUMBER, JsonValueError, canonical, digest
from pdp.manifest.model import Tool
from pdp.opa.admission import staged_policies
from pdp.opa.modules import Module, baseline_folder, baseline_policies_path, collect
from pdp.opa.names import KnownNames
from pdp.opa.program import OPA_VERSION, needed_opa

_MOST_STORED: Final = 32
_READ_BESIDE: Final = ("capabilities.json", "schemas/request.json")


def compile_bundle(
    *,
    policies: Sequence[Path],
    release: int,
    opa: Path,
    data: Sequence[Path] = (),
    manifests: Mapping[str, Any] | None = None,
    tools: Sequence[Tool] = (),
) -> bytes:
    """Build a bundle and return the file's bytes; `write_bundle` writes them.

    Args:
        policies: the baseline's folder (`authz/decision.rego`, `capabilities.json`, `schemas/`)
            and those of the user's modules, each `package custom.concerns.NAME`. Unit tests (`..._test.rego`) are
            left out; a user's with a concern in it is refused.
        release: counts upwards from 1.
        opa: another version of it compiles other bytes.
        data: files with the roots `directory` and `settings`, each laid over those before it.
        manifests: documents by digest.
        tools: their entries: the user's concerns may name what these bring into a request; without any, anything.

    Raises:
        FileFaultsError: Rego that is not admitted, each fault with its place.
        UsageError: an argument, a folder or a data file cannot be used, or OPA cannot be run.
        BundleError: what was built cannot be used: larger than a bundle may be.
    """
    if not 1 <= release <= MAX_NUMBER:
        raise UsageError(f"release {release} is out of range", hint="releases count upwards from 1")
    given = read_data(data)
    documents = merged_data({}, manifests=manifests, data=given)
    with staged_policies(policies, opa, names=KnownNames(tools, given)) as staged:
        # The baseline is held to the conventions where it is made.
        for faults in staged.faults(staged.of(custom=True)):
            if faults:
                raise FileFaultsError(faults)
        wasm = staged.tool.compile([DECISION, FINDINGS, PLAN])
        # An engine refuses to decide when one of them is lost.
        own = staged.concerns(custom=False)
        concerns = own | staged.concerns(custom=True)
    if baseline_folder(policies) == baseline_policies_path():
        _check_baseline(own)
    try:
        packed = pack_bundle(
            release=release,
            wasm=wasm,
            data={**documents, "config": {"required_concerns": sorted(concerns)}},
            modules={path: module.text for path, module in staged.modules.items()},
        )
    except JsonValueError as error:
        raise UsageError(f"the bundle's data: {error}") from error
    # It must load as well: builtins outside the module and data that it cannot read would show only at run time.
    EmbeddedEngine(read_bundle(packed)).close()
    return packed


def _check_baseline(concerns: Collection[str]) -> None:
    """Refuse policies that lack a concern of the released baseline: a part of the folder is lost."""
    released = baseline_bundle_path()
    if not released.exists():  # before the first release
        return
    if lost := set(read_bundle(released).data["config"]["required_concerns"]).difference(concerns):
        raise UsageError(
            f"the policies lack concerns of the released baseline: {', '.join(sorted(lost))}",
            hint="install tool-pdp again, or restore policies/authz/concerns; who removes one for good removes "
            "bundles/baseline.tar.gz as well",
        )


def write_bundle(out: Path, packed: bytes) -> None:
    """Write a bundle's bytes to `out`, which others may read and which is replaced at once or not at all.

    UsageError: it cannot be written.
    """
    try:
        replace_file(out, packed)
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error


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
    packed = compile_bundle(policies=folders, release=1, opa=needed_opa("compiling policies"))
    _store(stored, packed)
    return read_bundle(packed)


def _sources(baseline: Path, modules: Mapping[str, Module]) -> str:
    """A name for all that the compiled bundle depends on."""
    beside = [(baseline / name).read_text(encoding="utf-8") for name in _READ_BESIDE]
    texts = {path: digest(module.text.encode()) for path, module in modules.items()}
    program = ""  # a copy of the package that is not installed has no version
    with suppress(PackageNotFoundError):
        program = version("tool-pdp")
    return digest(canonical([program, OPA_VERSION, texts, beside])).removeprefix("sha256:")


def _store(path: Path, packed: bytes) -> None:
    with suppress(OSError):  # a cache that cannot be written only takes time
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, packed, mode=0o600)
        for old in sorted(path.parent.glob("*.tar.gz"), key=lambda bundle: bundle.stat().st_mtime)[:-_MOST_STORED]:
            old.unlink(missing_ok=True)
