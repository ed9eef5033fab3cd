"""Public names for engines, their bundles and keys. Each name is imported when it is first used."""

from typing import TYPE_CHECKING

from pdp import lazy

if TYPE_CHECKING:  # Imported when first used.
    from pdp.engine.bundle.file import read_bundle as read_bundle
    from pdp.engine.bundle.follow import FollowingEngine as FollowingEngine
    from pdp.engine.bundle.signature import load_public_keys as load_public_keys
    from pdp.engine.bundle.trust import BundleTrust as BundleTrust
    from pdp.engine.opa.engine import SidecarEngine as SidecarEngine
    from pdp.engine.protocol import Engine as Engine
    from pdp.engine.shadow import ShadowEngine as ShadowEngine
    from pdp.engine.wasm.engine import EmbeddedEngine as EmbeddedEngine

__getattr__ = lazy(
    __name__,
    {
        "pdp.engine.bundle.file": ("read_bundle",),
        "pdp.engine.bundle.follow": ("FollowingEngine",),
        "pdp.engine.bundle.signature": ("load_public_keys",),
        "pdp.engine.bundle.trust": ("BundleTrust",),
        "pdp.engine.opa.engine": ("SidecarEngine",),
        "pdp.engine.protocol": ("Engine",),
        "pdp.engine.shadow": ("ShadowEngine",),
        "pdp.engine.wasm.engine": ("EmbeddedEngine",),
    },
)
