"""The playground: decide a call with an edited manifest entry and a concern of one's own, without any effect.

Another process decides (`pdp.workbench.playground`), so that a text that runs for ever can be stopped.
"""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any, Final

import yaml
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from pdp.documents import read_document
from pdp.engine.bundle.file import read_bundle
from pdp.errors import PdpError
from pdp.json import thawed
from pdp.manifest.spellings import entry_name, manifest_root
from pdp.opa.modules import baseline_policies_path, collect
from pdp.opa.program import find_opa
from pdp.project.file import Project, read_project
from pdp.service.console.page import ConsoleRoute, PlayViewer, SentForm, Viewer, render
from pdp.service.console.texts import text
from pdp.service.console.visible import json_text
from pdp.service.security.principal import Scope

router = APIRouter(route_class=ConsoleRoute)

PLAY: Final = "/console/play"
FIELDS: Final = ("arguments", "session", "entry", "concern")
"""The texts that a person edits; with the tool, the keys of `pdp.workbench.playground.Texts`."""

_LONGEST: Final = 64 * 1024
_SECONDS: Final = 50.0
_PATIENCE: Final = 10.0
_MOST_TOOLS: Final = 500
_MOST_LINES: Final = 5_000  # Later lines have no number.
_turn = threading.Lock()
_log = logging.getLogger("pdp.service")


@router.get(PLAY)
async def show_playground(
    request: Request, viewer: PlayViewer, tool: Annotated[str, Query(max_length=256)] = ""
) -> Response:
    """Show the playground with the entry and example arguments of a tool."""
    name = tool if tool in viewer.caller.tenant.pep.manifest.tools else ""
    return await _page(request, viewer, {"tool": name}, load="tool")


@router.post(PLAY)
async def decide_played(request: Request, viewer: PlayViewer, form: SentForm) -> Response:
    """Decide the typed call, load a tool or a concern into the form, or send back the scenario as a file."""
    step = form.get("step", "")
    if step == "save":
        headers = {"Content-Disposition": 'attachment; filename="played.scenarios.yaml"'}
        return Response(form.get("scenario", ""), media_type="application/yaml", headers=headers)
    typed = {name: form.get(name, "").replace("\r\n", "\n") for name in ("tool", *FIELDS, "start", "loaded")}
    if step in ("tool", "concern"):
        return await _page(request, viewer, typed, load=step)
    switched = typed["loaded"] not in ("", typed["tool"])
    if switched:
        typed |= await asyncio.to_thread(_switched, viewer, typed)
    long = [name for name in FIELDS if len(typed[name].encode()) > _LONGEST]
    if typed["concern"].strip() and not viewer.caller.may(Scope.AUDIT):
        # A concern can put any policy data into its reason, also what the directory says of other people.
        answer = _failed(text("play.concern_scope"), "concern")
    elif long:
        answer = _failed(text("play.too_long", kib=_LONGEST // 1024), long[0])
    else:
        answer = await _answer(viewer, {name: typed[name] for name in ("tool", *FIELDS)})
    return await _page(request, viewer, typed, answer=answer, switched=switched)


async def _answer(viewer: Viewer, texts: Mapping[str, str]) -> dict[str, Any]:
    """Decide in another process. One process of the service runs one such process at a time."""
    for _ in range(int(_PATIENCE * 10)):
        if _turn.acquire(blocking=False):
            break
        await asyncio.sleep(0.1)
    else:
        return _failed(text("play.busy"))
    asked = {"file": str(viewer.caller.tenant.settings.project), "texts": texts}
    return await asyncio.shield(asyncio.to_thread(_decided, json.dumps(asked).encode()))


def _decided(asked: bytes) -> dict[str, Any]:
    """Return the answer of the other process, or a problem. Releases `_turn`."""
    command = [sys.executable, "-P", "-m", "pdp.workbench.playground"]
    try:
        # The folder of temporary files is deleted here, because a process that is killed deletes nothing.
        temporary = tempfile.TemporaryDirectory(prefix="pdp-play-", ignore_cleanup_errors=True)
        with temporary as folder, subprocess.Popen(  # noqa: S603 - this interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder}, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                written, complaint = process.communicate(asked, timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with each OPA that it has started
                return _failed(text("play.late", seconds=int(_SECONDS)))
    except OSError as error:
        _log.error("the playground cannot be started: %s", error)
        return _failed(text("play.broken"))
    finally:
        _turn.release()
    try:
        answer: dict[str, Any] = json.loads(written)
    except ValueError:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        _log.warning("the playground ended with exit code %s: %.200s", process.returncode, *last or ("",))
        return _failed(text("play.broken"))
    return answer


def _failed(message: str, field: str | None = None) -> dict[str, Any]:
    return {"problems": [{**dict.fromkeys(("file", "line", "column", "hint")), "field": field, "message": message}]}


async def _page(
    request: Request,
    viewer: Viewer,
    typed: Mapping[str, str],
    *,
    load: str = "",
    answer: dict[str, Any] | None = None,
    switched: bool = False,
) -> Response:
    values = await asyncio.to_thread(_loaded, viewer, typed, load)
    problems = [*values.pop("problems"), *(answer["problems"] if answer else ())]
    editors = {name: _gutter(values["typed"][name], name, problems) for name in FIELDS}
    sent = json.dumps(answer.get("request") if answer else None, indent=2, ensure_ascii=False)
    shown: dict[str, Any] = {
        "problems": problems,
        "answer": answer,
        "editors": editors,
        "request_json": sent,
        "details": _details,
    }
    return render(request, "play.html", switched=switched, **shown, **values)


def _loaded(viewer: Viewer, typed: Mapping[str, str], load: str) -> dict[str, Any]:
    """Return what the page shows beside the answer. `load` fills in the texts of a tool or a concern."""
    manifest = viewer.caller.tenant.pep.manifest
    names = sorted(manifest.tools)[:_MOST_TOOLS]
    shown = {**dict.fromkeys((*FIELDS, "start", "loaded"), ""), **typed}
    shown["tool"] = shown["tool"] or next(iter(names), "")
    problems: list[dict[str, Any]] = []
    concerns: dict[str, str] = {}
    has_opa = False
    try:
        project = read_project(viewer.caller.tenant.settings.project)
        concerns = _concerns(project)
        if load == "tool":
            shown |= _of_tool(viewer, project, shown["tool"])
            shown["session"] = shown["session"] or _first_session(viewer, project)
        elif load == "concern":
            shown["concern"] = concerns.get(shown["start"], text("play.skeleton"))
        has_opa = find_opa() is not None
    except PdpError as error:
        problems = _failed(error.message)["problems"]
    return {
        "typed": shown, "tools": names, "concerns": [*concerns], "has_opa": has_opa, "problems": problems,
        "running": manifest.digest,
    }  # fmt: skip


def _of_tool(viewer: Viewer, project: Project, tool: str) -> dict[str, str]:
    from pdp.workbench.neighbours.proposals import example_arguments  # noqa: PLC0415 - the service starts without it

    entry = viewer.caller.tenant.pep.manifest.tools.get(tool)
    arguments = {} if entry is None else example_arguments(entry.schema_)
    root = {} if project.manifest is None else manifest_root(read_document(project.manifest).value)
    written = next((each for each in root.get("tools", ()) if entry_name(each) == tool), None)
    return {
        "loaded": tool,
        "arguments": json.dumps(arguments, indent=2, ensure_ascii=False),
        "entry": "" if written is None else yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=100),
    }


def _switched(viewer: Viewer, typed: Mapping[str, str]) -> dict[str, str]:
    """Return the entry of the chosen tool, and its example arguments unless a person changed those in the form."""
    try:
        project = read_project(viewer.caller.tenant.settings.project)
        before, now = (_of_tool(viewer, project, typed[name]) for name in ("loaded", "tool"))
    except PdpError:  # the page lists this problem
        return {}
    return now if typed["arguments"] == before["arguments"] else {**now, "arguments": typed["arguments"]}


def _first_session(viewer: Viewer, project: Project) -> str:
    """Return the example session of the project, or a session of the viewer, with a key for tools that need one."""
    session = {"claims": thawed(dict(viewer.principal.claims))}
    if project.session is not None:
        session = read_document(project.session).value
    if isinstance(session, dict):
        session = {**session, "idempotency_key": session.get("idempotency_key") or "example-1"}
    return yaml.safe_dump(session, sort_keys=False, allow_unicode=True)


def _details(details: Mapping[str, Any]) -> str:
    """Return the details of a reason in one line, with the limit and its values first."""
    first = {name: details[name] for name in ("limit", "held", "value") if name in details}
    return ", ".join(f"{name} = {json_text(value)}" for name, value in {**first, **details}.items())


def _concerns(project: Project) -> dict[str, str]:
    """Return the Rego files of the project's concerns by path."""
    if project.bundle is not None:
        modules = read_bundle(project.bundle).modules
        return {path: module for path, module in modules.items() if path.startswith("custom/")}
    baseline = baseline_policies_path()
    found = collect(baseline, [baseline, *project.policies]) if project.policies else {}
    return {path: module.text for path, module in found.items() if module.custom}


def _gutter(written: str, field: str, problems: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    """Return the line numbers beside a text: runs of lines without a fault, and each line with the fault's number."""
    faults = {
        problem["line"]: at for at, problem in reversed([*enumerate(problems)])
        if problem["field"] == field and problem["line"]
    }  # fmt: skip
    lines = range(1, min(max(written.count("\n") + 4, 8), _MOST_LINES))
    runs = groupby(lines, key=faults.get)
    return [("\n".join(map(str, run)), fault) for fault, run in runs]
