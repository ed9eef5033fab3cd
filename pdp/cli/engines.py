"""The engine that a command asks for, opened for the time of the command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import UsageError
from pdp.workbench.engines import open_engine, policy_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.protocol import Engine, EngineName


@contextmanager
def engine_of_options(
    name: EngineName,
    manifests: Mapping[str, Any],
    *,
    bundle: Path | None = None,
    policies: Sequence[Path] = (),
    data: Sequence[Path] = (),
    opa_url: str | None = None,
) -> Iterator[Engine]:
    """Open the engine `name` for these manifests and close it at the end.

    Args:
        name: the option `--engine`.
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
    if opa_url is not None and name != "sidecar":
        raise UsageError(f"--opa-url is not for the {name} engine", hint="add --engine sidecar, or leave --opa-url out")
    if opa_url is not None and (bundle is not None or policies or data):
        raise UsageError(
            "an OPA that runs already decides by its own bundle and data",
            hint="leave --bundle, --policies and --data out, or leave --opa-url out and a local OPA is started",
        )
    chosen = chosen_bundle(bundle, policies)
    with open_engine(name, chosen, manifests=manifests, data=read_data(data), opa_url=opa_url) as engine:
        yield engine


def chosen_bundle(bundle: Path | None, policies: Sequence[Path]) -> Bundle | None:
    """Return the bundle that is named, or the one of the folders with the user's concerns; None where neither is.

    Raises:
        UsageError: both are named, or OPA is needed and not there.
        BundleError: the bundle cannot be used.
    """
    if bundle is not None and policies:
        raise UsageError(
            "--bundle and --policies exclude each other: a bundle holds its policies",
            hint="build them into the bundle: pdp bundle build --policies DIR -o FILE",
        )
    return policy_bundle(policies) if policies else None if bundle is None else read_bundle(bundle)
