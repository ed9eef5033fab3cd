"""The engine that a command asks for, opened for the time of the command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.data import read_data
from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.protocol import Engine


@contextmanager
def open_engine(
    name: str,
    manifests: Mapping[str, Any],
    *,
    bundle: Path | None = None,
    policies: Sequence[Path] = (),
    data: Sequence[Path] = (),
    opa_url: str | None = None,
) -> Iterator[Engine]:
    """Open the engine `name` for these manifests and close it at the end.

    Args:
        name: `embedded` or `sidecar`.
        manifests: the document of each effective manifest, by its digest.
        bundle: what to decide by; the released baseline when absent.
        policies: folders with the user's concerns, compiled with OPA.
        data: data files.
        opa_url: a running OPA; without it a local one is started for `sidecar`.

    Raises:
        UsageError: options that exclude each other, a faulty file, or OPA is needed and not there.
        BundleError: the bundle cannot be used.
        EngineError: the local OPA does not start.
    """
    _check_options(name, bundle=bundle, policies=policies, data=data, opa_url=opa_url)
    if opa_url is not None:
        from pdp.engine.opa.engine import SidecarEngine  # noqa: PLC0415

        with SidecarEngine.from_environment(opa_url) as engine:
            yield engine
        return
    chosen = _compiled(policies) if policies else read_bundle(bundle or baseline_bundle_path())
    laid_over = read_data(data)
    if laid_over:
        from pdp.cli.data_warnings import tell_data_warnings  # noqa: PLC0415

        tell_data_warnings(data, laid_over)
    if name == "embedded":
        from pdp.engine.wasm.engine import EmbeddedEngine  # noqa: PLC0415

        with EmbeddedEngine(chosen, manifests=manifests, data=laid_over) as engine:
            yield engine
    else:
        from pdp.engine.opa.engine import SidecarEngine  # noqa: PLC0415
        from pdp.workbench.opa.local import LocalOpa  # noqa: PLC0415

        with (
            LocalOpa(needed_opa("a sidecar"), bundle=chosen, manifests=manifests, data=laid_over) as opa,
            SidecarEngine(opa.url, token=opa.token) as engine,
        ):
            yield engine


def check_policy_source(bundle: Path | None, policies: Sequence[Path]) -> None:
    """Check that a bundle and folders with policies are not both named.

    Raises:
        UsageError: they are.
    """
    if bundle is not None and policies:
        raise UsageError(
            "--bundle and --policies exclude each other: a bundle holds its policies",
            hint="build them into the bundle: pdp bundle build --policies DIR -o FILE",
        )


def needed_opa(what: str) -> Path:
    """Return the OPA program; `what` needs it, as the error says when there is none.

    Raises:
        UsageError: there is none.
    """
    from pdp.workbench.opa.program import OPA_VERSION, find_opa  # noqa: PLC0415

    found = find_opa()
    if found is None:
        raise UsageError(f"{what} needs Open Policy Agent {OPA_VERSION}, and none is here", hint="run: pdp opa install")
    return found


def _check_options(
    name: str, *, bundle: Path | None, policies: Sequence[Path], data: Sequence[Path], opa_url: str | None
) -> None:
    check_policy_source(bundle, policies)
    if opa_url is None:
        return
    if name != "sidecar":
        raise UsageError(f"--opa-url is not for the {name} engine", hint="add --engine sidecar, or leave --opa-url out")
    if bundle is not None or policies or data:
        raise UsageError(
            "an OPA that runs already decides by its own bundle and data",
            hint="leave --bundle, --policies and --data out, or leave --opa-url out and a local OPA is started",
        )


def _compiled(policies: Sequence[Path]) -> Bundle:
    from pdp.workbench.bundles.build import compile_bundle  # noqa: PLC0415
    from pdp.workbench.opa.modules import baseline_policies_path  # noqa: PLC0415

    opa = needed_opa("compiling --policies")
    return read_bundle(compile_bundle(policies=[baseline_policies_path(), *policies], release=1, opa=opa))
