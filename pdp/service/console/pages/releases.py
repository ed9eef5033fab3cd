"""The bundle that decides: its release, its source, its signature, and earlier releases of its channel."""

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pdp.clock import to_seconds
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.bundle.signature import KEYS_VARIABLE, public_keys
from pdp.errors import PdpError
from pdp.project.file import Project, read_project
from pdp.service.console.page import ConsoleRoute, ReleaseViewer, Viewer, render
from pdp.service.console.texts import text

router = APIRouter(route_class=ConsoleRoute)

_MOST_CHANGES: Final = 20


@router.get("/console/releases")
async def show_releases(request: Request, viewer: ReleaseViewer) -> Response:
    """Show the bundle with which the engine decides now, and what its file says."""
    engine = viewer.caller.tenant.pep.engine
    # The engine names its bundle in every decision, also in the denial of an empty request.
    decision, healthy = await asyncio.gather(engine.adecide_body(b"{}"), engine.ahealthy())
    values = await asyncio.to_thread(_release, viewer, decision.bundle_revision)
    return render(
        request, "releases.html", engine=engine.name, healthy=healthy, revision=decision.bundle_revision,
        number=decision.release, manifest=viewer.caller.tenant.pep.manifest, **values,
    )  # fmt: skip


def _release(viewer: Viewer, revision: str | None) -> dict[str, Any]:
    values: dict[str, Any] = {"source": "", "file": None, "changed_at": None, "signature": "", "history": ()}
    try:
        settings = viewer.caller.tenant.settings
        project = read_project(settings.project)
        path = _file(project)
        # Only an OPA that this project does not start has a bundle of its own.
        opa = settings.opa_url or (project.opa_url if (settings.engine or project.engine) == "sidecar" else None)
        if opa is not None:
            return {**values, "source": text("releases.from_opa", url=opa), "problem": None}
        if path is None:
            names = ", ".join(map(str, project.policies))
            return {**values, "source": text("releases.from_policies", folders=names), "problem": None}
        values["source"] = text(
            "releases.from_file" if project.bundle else "releases.from_baseline", file=path.resolve()
        )
        bundle = read_bundle(path)
        values |= {
            "file": bundle,
            "changed_at": to_seconds(path.stat().st_mtime),
            "signature": _signature(path, bundle.signature.key_id if bundle.signature else None),
            "history": _history(path),
        }
    except (PdpError, OSError) as error:
        return {**values, "problem": str(error)}
    return {**values, "problem": None if bundle.revision == revision else text("releases.other_file")}


def _file(project: Project) -> Path | None:
    return project.bundle or (None if project.policies else baseline_bundle_path())


def _signature(path: Path, key: str | None) -> str:
    """Return what is known of the bundle's signature. Only a trusted key proves who signed it."""
    trusted = os.environ.get(KEYS_VARIABLE)
    if key is None:
        return text("releases.unsigned")
    if not trusted:
        return text("releases.claimed", key=key, variable=KEYS_VARIABLE)
    try:
        read_bundle(path, keys=public_keys(trusted, f"the variable {KEYS_VARIABLE}"))
    except PdpError as error:
        return text("releases.not_verified", key=key, why=error.message)
    return text("releases.verified", key=key, variable=KEYS_VARIABLE)


def _history(path: Path) -> list[Any]:
    """Return the last changes of the channel, if the bundle is a channel of a repository (`pdp bundle publish`)."""
    if path.parent.name != "channels":
        return []
    from pdp.workbench.bundles.publish import history  # noqa: PLC0415 - the service starts without it

    channel = path.name.removesuffix(".tar.gz")
    changes = [change for change in history(path.parent.parent) if change.channel == channel]
    return changes[: -_MOST_CHANGES - 1 : -1]
