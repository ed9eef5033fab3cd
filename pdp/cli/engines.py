"""The engine that a command asks for, opened for the time of the command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import UsageError
from pdp.workbench.engines import open_engine, policy_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.protocol import Engine
    from pdp.project.file import Project


@contextmanager
def engine_of_project(
    project: Project, manifests: Mapping[str, Any], *, opa_url: str | None = None
) -> Iterator[Engine]:
    """Open the engine of a project for these manifests and close it at the end.

    Args:
        project: as `project_with` returns it.
        manifests: the document of each effective manifest, by its digest.
        opa_url: the option, which says nothing about the embedded engine.

    Raises:
        UsageError: `opa_url` for the embedded engine, a faulty file, or OPA is needed and not there.
        BundleError: the bundle cannot be used.
        EngineError: the local OPA does not start.
    """
    name = project.engine
    if name == "sidecar" and project.opa_url is not None:
        with open_engine(name, manifests=manifests, opa_url=project.opa_url) as engine:
            yield engine
        return
    if opa_url is not None:
        raise UsageError(f"--opa-url is not for the {name} engine", hint="add --engine sidecar, or leave --opa-url out")
    with open_engine(name, decided_by(project), manifests=manifests, data=read_data(project.data)) as engine:
        yield engine


def decided_by(project: Project) -> Bundle | None:
    """Return the policies of a project with the baseline, or its bundle where it has none; None where it has neither.

    Raises:
        UsageError: OPA is needed and not there.
        BundleError: the bundle cannot be used.
    """
    if project.policies:
        return policy_bundle(project.policies)
    return None if project.bundle is None else read_bundle(project.bundle)
