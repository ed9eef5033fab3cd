"""From policy folders, data and manifests to one bundle file. The same sources give the same bytes, on any machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.file import pack_bundle, read_bundle, replace_file
from pdp.engine.data import merged_data, read_data
from pdp.engine.protocol import DECISION, FINDINGS, PLAN
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import FileFaultsError, UsageError
from pdp.json import MAX_NUMBER, JsonValueError, parse_json
from pdp.workbench.bundles.admission import check_conventions, check_packages, check_unit_tests
from pdp.workbench.opa.modules import baseline_folder, collect
from pdp.workbench.opa.syntax import parse_modules
from pdp.workbench.opa.tool import OpaTool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.workbench.bundles.admission import Concerns

_MAX_CONFIG: Final = 1024 * 1024


def compile_bundle(
    *,
    policies: Sequence[Path],
    release: int,
    opa: Path,
    data: Sequence[Path] = (),
    manifests: Mapping[str, Any] | None = None,
) -> bytes:
    """Build a bundle and return the file's bytes; `write_bundle` writes them.

    Args:
        policies: the baseline's folder (`authz/decision.rego`, `capabilities.json`, `schemas/`, `config/data.json`)
            and those of the user's modules, each `package custom.concerns.NAME`. Unit tests (`..._test.rego`) are
            left out; a user's with a concern in it is refused.
        release: counts upwards from 1.
        opa: the OPA program; another version compiles other bytes.
        data: JSON files with the roots `directory` and `settings`, each laid over those before it.
        manifests: the document of each effective manifest, by its digest.

    Raises:
        FileFaultsError: Rego that is not admitted, each fault with its place.
        UsageError: an argument, a folder or a data file cannot be used, or OPA cannot be run.
        BundleError: what was built cannot be used: larger than a bundle may be.
    """
    if not 1 <= release <= MAX_NUMBER:
        raise UsageError(f"release {release} is out of range", hint="releases count upwards from 1")
    baseline = baseline_folder(policies)
    modules = collect(baseline, policies)
    # They are left out of the bundle, once it is sure that they are no more than tests.
    tests = {path: module for path, module in collect(baseline, policies, tests=True).items() if module.custom}
    documents = merged_data({}, manifests=manifests, data=read_data(data))
    with tempfile.TemporaryDirectory(prefix="pdp-build-") as temporary:
        tool = OpaTool.staged(
            opa, Path(temporary, "policies"), modules, capabilities=_existing(baseline / "capabilities.json")
        )
        trees = parse_modules(opa, modules)
        concerns = check_packages(modules, trees)
        check_unit_tests(tests, parse_modules(opa, tests))
        schemas = baseline / "schemas"
        try:
            tool.check(schemas=schemas.resolve() if schemas.is_dir() else None)
        except FileFaultsError as error:
            # The baseline alone is in order: its rules are named where a user's makes them recursive.
            own_files = {str(module.file) for module in modules.values() if module.custom}
            own = [fault for fault in error.faults if fault.place.file in own_files]
            raise FileFaultsError(own or error.faults) from error
        # The baseline is held to them where it is made.
        faults = check_conventions({path: module for path, module in modules.items() if module.custom}, trees, opa)
        if faults:
            raise FileFaultsError(faults)
        wasm = tool.compile([DECISION, FINDINGS, PLAN])
    try:
        packed = pack_bundle(
            release=release,
            wasm=wasm,
            data={**documents, "config": _config(baseline / "config/data.json", concerns)},
            modules={path: module.text for path, module in modules.items()},
        )
    except JsonValueError as error:
        raise UsageError(f"the bundle's data: {error}") from error
    # It must load as well: builtins outside the module and data that it cannot read would show only at run time.
    EmbeddedEngine(read_bundle(packed)).close()
    return packed


def write_bundle(out: Path, packed: bytes) -> None:
    """Write a bundle's bytes to `out`, which others may read and which is replaced at once or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        replace_file(out, packed)
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error


def _existing(capabilities: Path) -> Path:
    if not capabilities.is_file():
        raise UsageError(
            f"{capabilities}: missing", hint="it lists the builtins that policies may use; take it from the baseline"
        )
    return capabilities.resolve()


def _config(file: Path, concerns: Concerns) -> dict[str, Any]:
    """The policies' own configuration, with the concerns that must be loaded: all that are there.

    A list in the file names concerns of the baseline that must be among them, so that none is lost unnoticed.
    """
    config: Any = {}
    if file.is_file():
        with file.open("rb") as opened:
            content = opened.read(_MAX_CONFIG)
        try:
            config = parse_json(content)
        except JsonValueError as error:
            raise UsageError(f"{file}: {error}") from error
    if not isinstance(config, dict) or "bundle" in config:
        raise UsageError(f"{file}: not an object without `bundle`", hint="the build itself says which bundle it is")
    required = config.get("required_concerns", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise UsageError(f"{file}: required_concerns is not a list of names")
    lost = sorted(set(required) - set(concerns.baseline))
    if lost:
        raise UsageError(f"{file}: requires concerns that the baseline does not have: {', '.join(lost)}")
    return {**config, "required_concerns": sorted({*concerns.baseline, *concerns.custom})}
