"""Engine and stores of an enforcement point that is made from files: opened for it, and closed with it."""

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
    accept_unknown_opa: bool = False,
    bundle: str | Path | None = None,
    policies: Sequence[str | Path] = (),
    data: Mapping[str, Any] | Sequence[str | Path] | None = None,
) -> Engine:
    """Return an engine that decides for this manifest, closed with `owned`; or the one that is given, which is not.

    Arguments and errors as of `Pep.from_files`; `accept_unknown_opa` as of `SidecarEngine`.
    """
    check_choice(engine, opa_url=opa_url, bundle=bundle, policies=policies, data=data)
    if isinstance(engine, Engine):
        return engine
    if engine not in ENGINES:
        raise UsageError(f"no engine is called {engine!r:.40}", hint="name embedded or sidecar, or give an open one")
    if opa_url is not None:
        from pdp.engine.opa.engine import TOKEN_VARIABLE, SidecarEngine  # noqa: PLC0415 - only with a sidecar

        token = os.environ.get(TOKEN_VARIABLE) or None
        return owned.enter_context(SidecarEngine(opa_url, token=token, accept_unknown_opa=accept_unknown_opa))
    if isinstance(data, list | tuple):
        data = read_data([Path(file) for file in data])
    if policies:
        from pdp.opa.build import policy_bundle  # noqa: PLC0415 - it loads an engine, 40 ms

        decides = policy_bundle([Path(folder) for folder in policies])
    else:
        decides = read_bundle(Path(bundle) if bundle else baseline_bundle_path())
    documents = {manifest.digest: manifest.document}
    return open_engine(engine, decides, owned, manifests=documents, data=cast("Any", data))


def check_choice(engine: object, *, opa_url: object, bundle: object, policies: object, data: object) -> None:
    """Raise UsageError where what is stated of an engine does not go together."""
    if bundle and policies:
        raise UsageError(
            "bundle and policies exclude each other: a bundle holds its policies",
            hint="build them into the bundle: pdp bundle build --policies DIR -o FILE",
        )
    if (opa_url or isinstance(engine, Engine)) and (bundle or policies or data):
        raise UsageError(
            "an engine that runs already decides by its own bundle and data",
            hint="leave bundle, policies and data out, or let an engine be opened for them",
        )
    if opa_url and engine == "embedded":
        raise UsageError(
            "the URL of an OPA is not for the embedded engine", hint="choose the engine sidecar, or leave the URL out"
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
    """Return the engine of a name, closed with `owned`; `sidecar` starts an OPA. A new engine has its branch here.

    `manifests`: their documents by their digests; `timeout`: seconds for one answer; the engine's own when absent.

    Errors as of `Pep.from_files`.
    """
    match name:
        case "embedded":
            from pdp.engine.wasm.engine import DEADLINE, EmbeddedEngine  # noqa: PLC0415 - 40 ms with what it runs on

            deadline = timeout or DEADLINE
            return owned.enter_context(EmbeddedEngine(bundle, manifests=manifests, data=data, deadline=deadline))
        case "sidecar":
            from pdp.engine.opa.engine import CONNECT_TIMEOUT, TIMEOUT, SidecarEngine  # noqa: PLC0415
            from pdp.opa.local import local_opa  # noqa: PLC0415 - it starts an OPA program
            from pdp.opa.program import needed_opa  # noqa: PLC0415 - likewise

            started = local_opa(needed_opa("a sidecar"), bundle=bundle, manifests=manifests, data=data)
            opa = owned.enter_context(started)
            limit, connect = timeout or TIMEOUT, timeout or CONNECT_TIMEOUT
            return owned.enter_context(SidecarEngine(opa.url, token=opa.token, timeout=limit, connect_timeout=connect))
        case _:
            assert_never(name)


def open_stores(url: str, owned: ExitStack) -> OpenStores:
    """Return the stores of one database, closed with `owned`.

    A SQLite file is made, or brought up to date; the tables of a server are for `pdp db upgrade`. Errors as of
    `Database.open`.
    """
    from pdp.stores.url import OpenStores  # noqa: PLC0415 - only applications with a store

    stores = OpenStores(url, upgrade=None)
    owned.callback(stores.close)
    return stores


def stores_of_pep(stores: OpenStores) -> dict[str, Any]:
    """Return the stores of an enforcement point by their parameters of `Pep`."""
    from pdp.approvals.approvals import Approvals  # noqa: PLC0415 - only applications with a store

    names = ("keys", "actions", "approvals", "ledger", "budgets", "remote_calls")
    opened = {name: getattr(stores, name) for name in names if name in vars(stores)}
    return opened | ({"approvals": Approvals(opened["approvals"])} if "approvals" in opened else {})
