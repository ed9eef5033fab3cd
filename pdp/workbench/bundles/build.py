"""From policy folders, data and manifests to one bundle file. The same sources give the same bytes, on any machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pdp.audit.file import replace_file
from pdp.documents import read_document
from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.engine.data import merged_data, read_data
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import FileFaultsError, UsageError
from pdp.json import MAX_NUMBER, JsonValueError
from pdp.manifest.model import Tool
from pdp.workbench.bundles.admission import staged_policies
from pdp.workbench.bundles.names import KnownNames
from pdp.workbench.opa.modules import baseline_folder


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
        policies: the baseline's folder (`authz/decision.rego`, `capabilities.json`, `schemas/`, `config/data.json`)
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
    config = baseline_folder(policies) / "config/data.json"
    try:
        packed = pack_bundle(
            release=release,
            wasm=wasm,
            data={
                **documents,
                "config": _config(config, baseline=staged.concerns(custom=False), custom=staged.concerns(custom=True)),
            },
            modules={path: module.text for path, module in staged.modules.items()},
        )
    except JsonValueError as error:
        raise UsageError(f"the bundle's data: {error}") from error
    # It must load as well: builtins outside the module and data that it cannot read would show only at run time.
    EmbeddedEngine(read_bundle(packed)).close()
    return packed


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


def _config(file: Path, *, baseline: set[str], custom: set[str]) -> dict[str, Any]:
    """The policies' own configuration, with the concerns that must be loaded: all that are there.

    A list in the file names concerns of the baseline that must be among them, so that none is lost unnoticed.
    """
    config: dict[str, Any] = read_document(file).value if file.is_file() else {}
    lost = sorted({*config.get("required_concerns", ())} - baseline)
    if lost:
        raise UsageError(f"{file}: requires concerns that the baseline does not have: {', '.join(lost)}")
    return {**config, "required_concerns": sorted(baseline | custom)}
