"""The engine of an enforcement point that is made from files: in the process, by the released baseline or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.engine.protocol import Engine
    from pdp.manifest.effective import EffectiveManifest


def embedded_engine(manifest: EffectiveManifest, bundle: str | None, data: Mapping[str, Any] | None) -> Engine:
    """Return the engine for a manifest.

    Args:
        manifest: the effective manifest, which the policy looks entries up in.
        bundle: path of a bundle; the released baseline when None.
        data: the roots `directory` and `settings`, laid over the bundle's.

    Raises:
        BundleError: the bundle cannot be used.
        UsageError: data that is not admitted.
    """
    from pdp.engine.bundle.file import baseline_bundle_path, read_bundle  # noqa: PLC0415 - 40 ms with what it runs on
    from pdp.engine.wasm.engine import EmbeddedEngine  # noqa: PLC0415 - likewise

    policies = read_bundle(Path(bundle) if bundle else baseline_bundle_path())
    return EmbeddedEngine(policies, manifests={manifest.digest: manifest.document}, data=data)
