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
    """Build a bundle and return its bytes, which also depend on the version of OPA.

    `policies` are the baseline's folder (`authz/decision.rego`, `capabilities.json`, `schemas/`) and the user's
    folders, whose modules must be `package custom.concerns.NAME`. Later `data` files override earlier files.
    `manifests` are documents by digest. With `tools`, the user's concerns may use only names that the tools have.

    Raises `FileFaultsError` with the faults in Rego, `UsageError` if an argument or OPA cannot be used, and
    `BundleError` if the result is not a valid bundle, for example because it is too large.
    """
    if not 1 <= release <= MAX_NUMBER:
        raise UsageError(f"release {release} is out of range", hint="give a number from 1 upwards")
    given = read_data(data)
    documents = merged_data({}, manifests=manifests, data=given)
    with staged_policies(policies, opa, names=KnownNames(tools, given)) as staged:
        # Only custom policies are checked here. The baseline's own conventions are checked in its repository.
        for faults in staged.faults(staged.of(custom=True)):
            if faults:
                raise FileFaultsError(faults)
        wasm = staged.tool.compile([DECISION, FINDINGS, PLAN])
        # The bundle lists its concerns, so that an engine that lacks one of them does not decide.
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
    # The bundle is loaded once, so that unavailable builtins and unreadable data are found now and not at run time.
    EmbeddedEngine(read_bundle(packed)).close()
    return packed


def _check_baseline(concerns: Collection[str]) -> None:
    released = baseline_bundle_path()
    if not released.exists():  # there is no released baseline yet
        return
    if lost := set(read_bundle(released).data["config"]["required_concerns"]).difference(concerns):
        raise UsageError(
            f"the policies lack concerns of the released baseline: {', '.join(sorted(lost))}",
            hint="install tool-pdp again, or restore policies/authz/concerns; to remove one for good, remove "
            "bundles/baseline.tar.gz too",
        )


def write_bundle(out: Path, packed: bytes) -> None:
    """Write a bundle to `out` atomically, readable for all users. Raises `UsageError` if `out` cannot be written."""
    try:
        replace_file(out, packed)
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written: {error.strerror}", hint="choose a folder you can write to"
        ) from error


def policy_bundle(policies: Sequence[Path] = ()) -> Bundle:
    """Return the bundle of the baseline and the user's `policies`, from the cache if their content is unchanged.

    Without `policies`, return the released baseline, unless a checkout has newer baseline policies. Raises `UsageError`
    if a folder cannot be used or OPA is missing, `FileFaultsError` or `BundleError`.
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
    # If the cache has no file, or its file is incomplete or of another version, the bundle is built.
    with suppress(BundleError):
        return read_bundle(stored)
    packed = compile_bundle(policies=folders, release=1, opa=needed_opa("compiling policies"))
    _store(stored, packed)
    return read_bundle(packed)


def _sources(baseline: Path, modules: Mapping[str, Module]) -> str:
    beside = [(baseline / name).read_text(encoding="utf-8") for name in _READ_BESIDE]
    texts = {path: digest(module.text.encode()) for path, module in modules.items()}
    program = ""  # if the package is used without being installed, its version is unknown
    with suppress(PackageNotFoundError):
        program = version("tool-pdp")
    return digest(canonical([program, OPA_VERSION, texts, beside])).removeprefix("sha256:")


def _store(path: Path, packed: bytes) -> None:
    with suppress(OSError):  # if the cache cannot be written, each call compiles the policies again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, packed, mode=0o600)
        for old in sorted(path.parent.glob("*.tar.gz"), key=lambda bundle: bundle.stat().st_mtime)[:-_MOST_STORED]:
            old.unlink(missing_ok=True)
