"""Engine and stores of an enforcement point that is created from files. They are closed with the enforcement point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never, cast

from pdp.engine.bundle.file import Bundle, baseline_bundle_path, read_bundle
from pdp.engine.data import read_data
from pdp.engine.protocol import ENGINES, Engine, EngineName
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest

if TYPE_CHECKING:
    from pdp.stores.url import OpenStores


def engine_of_files(
    manifest: EffectiveManifest,
    owned: ExitStack,
    *,
    engine: EngineName | Engine = "embedded",
    opa_url: str | None = None,
    opa_token: str | None = None,
    accept_unknown_opa: bool = False,
    bundle: str | Path | None = None,
    policies: Sequence[str | Path] = (),
    data: Mapping[str, Any] | Sequence[str | Path] | None = None,
) -> Engine:
    """Return an engine for a manifest. Closing `owned` closes the engine, unless the caller passed it as `engine`.

    Arguments and errors are those of `Pep.from_files`; for `accept_unknown_opa` see `SidecarEngine`. `opa_token` is the
    token for `opa_url`; by default, the value of PDP_OPA_TOKEN.
    """
    check_choice(engine, opa_url=opa_url, bundle=bundle, policies=policies, data=data)
    if isinstance(engine, Engine):
        return engine
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r:.40}", hint="use embedded or sidecar, or pass an Engine")
    if opa_url is not None:
        from pdp.engine.opa.engine import TOKEN_VARIABLE, SidecarEngine  # noqa: PLC0415 - only needed with a sidecar

        token = opa_token or os.environ.get(TOKEN_VARIABLE) or None
        return owned.enter_context(SidecarEngine(opa_url, token=token, accept_unknown_opa=accept_unknown_opa))
    if isinstance(data, list | tuple):
        data = read_data([Path(file) for file in data])
    if policies:
        from pdp.opa.build import policy_bundle  # noqa: PLC0415 - loads an engine, which takes 40 ms

        decides = policy_bundle([Path(folder) for folder in policies])
    else:
        decides = read_bundle(Path(bundle) if bundle else baseline_bundle_path())
    documents = {manifest.digest: manifest.document}
    return open_engine(engine, decides, owned, manifests=documents, data=cast("Any", data))


def check_choice(engine: object, *, opa_url: object, bundle: object, policies: object, data: object) -> None:
    """Raise `UsageError` if the arguments that choose an engine contradict each other."""
    if bundle and policies:
        raise UsageError(
            "bundle and policies cannot be used together: a bundle contains its policies",
            hint="build them into the bundle: pdp bundle build --policies DIR -o FILE",
        )
    if (opa_url or isinstance(engine, Engine)) and (bundle or policies or data):
        raise UsageError(
            "a running engine decides with its own bundle and data",
            hint="remove bundle, policies and data, or remove the engine or its URL",
        )
    if opa_url and engine == "embedded":
        raise UsageError(
            "the embedded engine does not use the URL of an OPA", hint="set the engine to sidecar, or remove the URL"
        )


def open_engine(
    name: EngineName,
    bundle: Bundle,
    owned: ExitStack,
    *,
    manifests: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Engine:
    """Return the engine with this name. Closing `owned` closes it. `sidecar` also starts an OPA server.

    `manifests` are documents by digest. `timeout` limits each decision in seconds; None for the engine's default.
    Errors are those of `Pep.from_files`. New kinds of engines are added here.
    """
    match name:
        case "embedded":
            from pdp.engine.wasm.engine import DEADLINE, EmbeddedEngine  # noqa: PLC0415 - takes 40 ms to import

            deadline = timeout or DEADLINE
            return owned.enter_context(EmbeddedEngine(bundle, manifests=manifests, data=data, deadline=deadline))
        case "sidecar":
            from pdp.engine.opa.engine import CONNECT_TIMEOUT, TIMEOUT, SidecarEngine  # noqa: PLC0415
            from pdp.opa.local import local_opa  # noqa: PLC0415 - only needed to start an OPA
            from pdp.opa.program import needed_opa  # noqa: PLC0415 - only needed to start an OPA

            started = local_opa(needed_opa("a sidecar"), bundle=bundle, manifests=manifests, data=data)
            opa = owned.enter_context(started)
            limit, connect = timeout or TIMEOUT, timeout or CONNECT_TIMEOUT
            return owned.enter_context(SidecarEngine(opa.url, token=opa.token, timeout=limit, connect_timeout=connect))
        case _:
            assert_never(name)


def open_stores(url: str, owned: ExitStack) -> OpenStores:
    """Return the stores of one database. Closing `owned` closes them.

    A SQLite file is created or upgraded. A server's tables need `pdp db upgrade`. Errors are those of `Database.open`.
    """
    from pdp.stores.url import OpenStores  # noqa: PLC0415 - only needed with a store

    stores = OpenStores(url, upgrade=None)
    owned.callback(stores.close)
    return stores


def stores_of_pep(stores: OpenStores, public_url: str | None = None) -> dict[str, Any]:
    """Return opened stores as the keyword arguments with which `Pep` takes them. `public_url` is for `Approvals`."""
    from pdp.approvals.approvals import Approvals  # noqa: PLC0415 - only needed with a store

    names = ("keys", "actions", "approvals", "ledger", "budgets", "remote_calls")
    opened = {name: getattr(stores, name) for name in names if name in vars(stores)}
    if "approvals" in opened:
        opened["approvals"] = Approvals(opened["approvals"], public_url=public_url)
    return opened
