"""The playground decides typed calls, lists faults of typed texts, and stores nothing."""

import json
import re
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.service.console.pages import play
from tests.service.console import Visitor, signed_in, words_of
from tests.support import ROOT
from tests.support.command_line import pdp
from tests.support.payments import EXAMPLE, wire
from tests.support.service import OFFICER, ServedApp, service, tenant_on

CONCERN = (EXAMPLE / "policies/custom/concerns/beneficiary/beneficiary.rego").read_text()
ENTRIES = {entry["name"]: entry for entry in json.loads((EXAMPLE / "manifest.json").read_text())["tools"]}
ENTRY, LOOKUP = ENTRIES["initiate_wire"], json.dumps(ENTRIES["lookup_beneficiary"])
TYPED = {
    "step": "decide",
    "tool": "initiate_wire",
    "arguments": json.dumps(wire(amount=47_500)["arguments"]),
    "session": (EXAMPLE / "session.json").read_text(),
    "entry": "",
    "concern": "",
}
NEW = """# METADATA
# title: Night
# description: No wires at night.
package custom.concerns.night

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Closed
# description: The bank is closed.
# custom:
#   code: night.closed
deny contains reason.new(rego.metadata.rule(), {}) if {
	BODY
}
"""
LIST = json.dumps([*range(60)])
ENDLESS = f"l := {LIST}\n\tx := [[a, b, c, d] | some a in l; some b in l; some c in l; some d in l]\n\tcount(x) == 1"


async def opened(served: ServedApp, *scopes: str) -> Visitor:
    return await signed_in(served, scopes or ("decide", "audit"), OFFICER)


async def decided(visitor: Visitor, **changes: Any) -> httpx.Response:
    return await visitor.posted("play", {**TYPED, **changes})


def content(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [*connection.iterdump()]


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder of temporary files is empty, and no process uses it. Killed processes need a moment."""
    for _ in range(100):
        environments = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environments.append((process / "environ").read_text(errors="replace"))
        if not any(str(folder) in each for each in environments):
            return not any(folder.glob("pdp-play-*"))
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "STEP_UP", "Details: limit = wire.auto_approved, held = 25000, value = 47500, approval ="),
        ({"loaded": "lookup_beneficiary", "entry": LOOKUP}, "STEP_UP", "the entry of initiate_wire was loaded"),
        ({"arguments": "{}"}, "REJECTED", '"amount" is a required property'),
        (
            {"concern": NEW.replace("BODY", 'input.action.name == "initiate_wire"')},
            "DENY",
            "Save the concern as policies/custom/concerns/night/night.rego",
        ),
        (
            {"entry": json.dumps({**ENTRY, "scopes": ["payments.none"]})},
            "DENY",
            "Replace the entry of initiate_wire in manifest.json",
        ),
    ],
    ids=["policies", "other tool", "rejected", "concern", "entry"],
)
async def test_scenario_of_a_played_call_passes_and_the_call_leaves_nothing(
    changes: dict[str, str], verdict: str, words: str, tmp_path: Path
) -> None:
    project = tmp_path / "examples/payments"
    shutil.copytree(EXAMPLE, project)
    shutil.copytree(ROOT / "bundles", tmp_path / "bundles")
    url = f"sqlite:///{tmp_path}/pdp.db"
    tenants = {"default": {**tenant_on(url), "project": project / "pdp.yaml"}}
    async with service(tmp_path, url=url, tenants=tenants) as served:
        visitor = await opened(served)
        before = content(tmp_path / "pdp.db")

        page = await decided(visitor, **changes)

        assert content(tmp_path / "pdp.db") == before
        assert f'<span class="tag {verdict}">' in page.text
        assert words in words_of(page)
        assert len(page.content) < 60_000
        scenario = re.search(r'<textarea id="scenario".*?>\n(.*?)</textarea>', page.text, re.DOTALL)
        assert scenario is not None
        saved = await visitor.posted("play", {"step": "save", "scenario": unescape(scenario[1])})
        assert saved.headers["content-disposition"].startswith("attachment")
    if "concern" in changes:
        (project / "policies/custom/concerns/night").mkdir()
        (project / "policies/custom/concerns/night/night.rego").write_text(changes["concern"])
    if "entry" in changes and "loaded" not in changes:
        manifest = json.loads((project / "manifest.json").read_text())
        manifest["tools"] = [e for e in manifest["tools"] if e["name"] != ENTRY["name"]] + [
            json.loads(changes["entry"])
        ]
        (project / "manifest.json").write_text(json.dumps(manifest))
    (project / "played.scenarios.yaml").write_bytes(saved.content)
    assert pdp("test", project / "played.scenarios.yaml").code == 0


FAULTS = [
    ("arguments", '{"amount": }', "Arguments 1:12 not JSON"),
    ("session", "claims: {sub: a}\nclams: 3", "Session session: clams: Extra inputs"),
    ("entry", "name: initiate_wire\nrisk_tire: low", "Manifest entry 2:1 unknown key `risk_tire` did you mean"),
    ("entry", "name: initiate_wire\nsignature: pdp.yaml", "Manifest entry 2:12 an edited entry cannot name"),
    ("entry", "name: initiate_wire\nsignature: {$ref: pdp.yaml}", "Manifest entry 2:12 an edited entry cannot name"),
    ("concern", CONCERN.replace("object.get", "object.gett"), "Concern 16:62 unknown function object.gett"),
    ("concern", NEW.replace("BODY", "http.send({}) == 1"), "Concern 15:2 the builtin http.send is not allowed"),
    ("concern", "package authz\n", "a custom module must be `package custom.concerns.NAME`, not `package authz`"),
    ("session", "x" * 65_537, "Session the text has more than 64 KiB"),
]
"""The name of a field, a text with a fault, and the words that the page shows."""


async def test_faults_are_listed_beside_the_text_that_stays(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        visitor = await opened(served)
        for field, typed, words in FAULTS:
            page = await decided(visitor, **{field: typed})

            assert words in words_of(page)
            for name, written in {**TYPED, field: typed}.items():
                assert name in ("step", "tool") or f">\n{written}</textarea>" in unescape(page.text)
            for line in re.findall(r'<a href="#((?:arguments|entry|concern)-\d+)">', page.text):
                assert re.search(rf'<a id="{line}" href="#fault-\d"', page.text)


async def test_policy_that_does_not_end_gives_no_decision(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        page = words_of(await decided(await opened(served), concern=NEW.replace("BODY", ENDLESS)))

        assert "DENY Reasons" in page
        assert re.search(r"engine\.(answer_invalid|timeout)", page)
        assert "The policy made no decision, so there is nothing to expect." in page


async def test_evaluation_that_takes_too_long_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "_SECONDS", 3)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    body = "\n\t".join(f'input.action.name != "n{number}"' for number in range(1_800))
    async with service(tmp_path) as served:
        page = await decided(await opened(served), concern=NEW.replace("BODY", body))

        assert "the evaluation was stopped after 3 s" in words_of(page)
    assert is_abandoned(tmp_path)


async def test_without_opa_all_but_the_concern_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDP_OPA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with service(tmp_path) as served:
        visitor = await opened(served)

        form = await visitor.get("play")
        page = words_of(await decided(visitor))
        refused = words_of(await decided(visitor, concern=NEW))

    assert 'name="concern"' not in form.text
    assert "OPA is not installed here" in words_of(form)
    assert "STEP_UP Reasons The amount is above" in page
    assert "The trace is not known without OPA" in page
    assert "an edited concern needs Open Policy Agent" in refused


async def test_tool_and_concern_are_loaded_into_the_form(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        visitor = await opened(served)

        first = unescape((await visitor.get("play", tool="lookup_beneficiary")).text)
        default = re.findall(r'<textarea id="(\w+)".*?>\n(.*?)</textarea>', (await visitor.get("play")).text, re.DOTALL)
        decision = await decided(visitor, **{name: unescape(value) for name, value in default}, tool="initiate_wire")
        path = "custom/concerns/beneficiary/beneficiary.rego"
        loaded = await visitor.posted("play", {**TYPED, "step": "concern", "start": path, "arguments": "typed"})
        new = await visitor.posted("play", {**TYPED, "step": "concern", "start": ""})

    assert "name: lookup_beneficiary\n" in first
    assert '"payee_name": "<payee_name>"' in first
    assert "idempotency_key: idm-4a2b" in first
    assert re.search(r'<span class="tag (ALLOW|STEP_UP|DENY)">', decision.text)
    assert CONCERN in unescape(loaded.text)
    assert ">\ntyped</textarea>" in loaded.text
    assert "package custom.concerns.mine" in new.text


async def test_playground_needs_the_scope_decide_and_a_concern_audit(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        decider = await opened(served, "decide")
        assert "needs the scope audit to try a concern" in words_of(await decided(decider, concern="package a"))
        visitor = await opened(served, "propose", "approve", "audit")

        assert (await visitor.get("play")).status_code == 403
        assert (await decided(visitor)).status_code == 403
