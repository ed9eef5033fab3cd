"""The recorded request of a decision on the page of its event, and the form that decides the request again."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.audit.requests import RecordedRequest, plain_answer
from pdp.contract.sensitive import Mask
from pdp.decision import Decision, parse_decision
from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import read_data
from pdp.errors import AuditError, PdpError
from pdp.json import canonical
from pdp.project.file import read_project
from pdp.project.resources import open_engine
from pdp.service.console.page import Viewer
from pdp.service.console.texts import text
from pdp.service.security.principal import Scope

RUNNING: Final = "running"
"""The choice of the bundle with which the service decides now. Other choices are the names of released bundles."""

_MOST_RELEASES: Final = 20


def recorded_values(viewer: Viewer, event: Mapping[str, Any], choice: str | None = None) -> dict[str, Any]:
    """Return what the page shows of the request that an event records, and the new answer if a bundle is chosen."""
    values: dict[str, Any] = {"why_not": None, "arguments": None, "is_masked": False, "answer": None, "choice": choice}
    try:
        opened = _opened(viewer, event)
        releases = _releases(viewer)
        file = None if choice in (None, RUNNING) else releases[str(choice)]
        answer = None if choice is None else _decided(viewer, opened.body, file)
    except (PdpError, KeyError) as error:
        why_not = error.message if isinstance(error, PdpError) else text("recorded.no_bundle")
        return {**values, "why_not": why_not, "releases": ()}
    sent = orjson.loads(opened.body)
    arguments = sent["context"]["arguments"]
    tool = viewer.caller.tenant.pep.manifest.tools.get(event["tool_name"])
    # If the manifest has no such tool any more, all its arguments count as sensitive.
    mask = Mask(arguments if tool is None else tool.sensitive, arguments)
    request = mask.value(sent)
    return {
        **values,
        "arguments": [*request["context"]["arguments"].items()],
        "request": orjson.dumps(request, option=orjson.OPT_INDENT_2).decode(),
        "is_masked": request != sent,
        "releases": (RUNNING, *releases),
        "other_manifest": event["manifest_digest"] != viewer.caller.tenant.pep.manifest.digest,
        "answer": answer
        and {
            "equal": plain_answer(answer) == opened.answer,
            "sides": [
                {
                    "title": title,
                    "verdict": side.verdict.value,
                    "reasons": [(each.code, mask.text(each.message)) for each in side.reasons],
                    "whole": canonical(mask.value(orjson.loads(plain_answer(side)))).decode(),
                }
                for title, side in (("recorded.then", parse_decision(opened.answer)), ("recorded.now", answer))
            ],
        },
    }


def _opened(viewer: Viewer, event: Mapping[str, Any]) -> RecordedRequest:
    """Return the record of an event. Raise `PdpError` with the reason why the page cannot show it."""
    tenant = viewer.caller.tenant
    if "request_digest" not in event:
        raise AuditError(text("recorded.none"))
    if not viewer.caller.may(Scope.REQUESTS):
        raise AuditError(text("recorded.no_scope"))
    if tenant.requests is None:
        raise AuditError(text("recorded.no_key"))
    sealed = tenant.stores.requests.read(event["seq"])
    if sealed is None:
        raise AuditError(text("recorded.deleted"))
    return tenant.requests.open(event, sealed)


def _releases(viewer: Viewer) -> dict[str, Path]:
    """Return the newest releases, if the project's bundle is a channel of a repository, by their file names."""
    bundle = read_project(viewer.caller.tenant.settings.project).bundle
    folder = None if bundle is None or bundle.parent.name != "channels" else bundle.parent.with_name("releases")
    files = [] if folder is None else [file for file in folder.glob("*.tar.gz") if file.name[:-7].isdecimal()]
    newest = sorted(files, key=lambda file: -int(file.name[:-7]))[:_MOST_RELEASES]
    return {file.name: file for file in newest}


def _decided(viewer: Viewer, body: bytes, file: Path | None) -> Decision:
    """Return the decision of the running engine, or of the bundle in a file, which runs in the same limits."""
    pep = viewer.caller.tenant.pep
    if file is None:
        return pep.engine.decide_body(body)
    project = read_project(viewer.caller.tenant.settings.project)
    with ExitStack() as owned:
        documents, data = {pep.manifest.digest: pep.manifest.document}, read_data(project.data)
        return open_engine("embedded", read_bundle(file), owned, manifests=documents, data=data).decide_body(body)
