"""Tests of an import and a later scan: the imported manifest loads, allows no call, and equals the scanned source."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.documents import read_document
from tests.support.command_line import pdp
from tests.support.mcp.gateway import SERVER, http_server

Json = dict[str, Any]

TOOLS: list[Json] = [
    {
        "name": "send_mail", "description": "Sends a mail.",
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["to"],
            "properties": {"to": {"type": "string", "format": "mail"}, "text": {"type": "string"}},
        },
    },
    {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}},
    {
        "name": "read_note", "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    {
        "name": "add_note", "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}},
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    },
]  # fmt: skip
API = """\
openapi: 3.1.0
paths:
  /orders/{id}:
    parameters: [{$ref: "#/components/parameters/id"}]
    get: {operationId: getOrder, summary: Get an order}
    delete: {}
    post:
      operationId: createOrder
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: "#/components/schemas/Order"}}}
components:
  parameters: {id: {name: id, in: path, required: true, description: Which, schema: {type: integer, format: int64}}}
  schemas:
    Order:
      type: object
      required: [lines]
      properties:
        lines: {type: array, items: {$ref: "#/components/schemas/Line"}}
        parent: {$ref: "#/components/schemas/Order"}
    Line: {type: object, properties: {sku: {type: string}}}
"""
MODULE = '''\
def add_order(lines: list[str], parent: int | None = None) -> str:
    """Adds an order."""


class Mail:
    name, description = "send_mail", "Sends a mail."
    tool_call_schema = {"type": "object", "properties": {"to": {"type": "string"}, "text": {"type": "string"}}}


class Agent:
    debug = False
    tools = (add_order, Mail())


AGENT = Agent()
'''
SETTINGS: Json = {
    "permissions": {
        "allow": ["Bash(git diff *)", "mcp__notes__add", "Edit"],
        "ask": ["Bash"],
        "deny": ["WebFetch", "Bash(rm *)", "Write"],
    }
}
TOOLKIT: Json = {
    "agent_control_specification_version": "0.3.0-alpha-agt",
    "policies": {"mail": {"type": "rego"}},
    "tools": {"send_mail": {"clearance": "internal", "security_labels": ["external"]}, "read_note": {}},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    (tmp_path / ".claude").mkdir()
    write("tools.json", {"tools": TOOLS})
    write("server.json", {"tools": TOOLS})
    write("api.yaml", API)
    write("shop.py", MODULE)
    write(".claude/settings.json", SETTINGS)
    write("agt.yaml", TOOLKIT)
    return tmp_path


def write(name: str, value: Any) -> None:
    Path(name).write_text(value if isinstance(value, str) else json.dumps(value))


SOURCES: dict[str, tuple[str, ...]] = {
    "agt": ("agt.yaml",),
    "app": ("shop:AGENT",),
    "command": ("--", sys.executable, str(SERVER), "."),
    "hooks": ("claude-code",),
    "mcp": ("tools.json",),
    "openapi": ("api.yaml",),
}
ARGUMENTS: dict[tuple[str, str], Json] = {
    ("app", "add_order"): {"lines": []}, ("command", "send_mail"): {"to": "ann"}, ("mcp", "send_mail"): {"to": "ann"},
    ("openapi", "create_order"): {"lines": [], "id": 1}, ("openapi", "delete_orders_id"): {"id": 1},
    ("openapi", "get_order"): {"id": 1},
}  # fmt: skip
"""The arguments that a call of a tool needs, keyed by source and tool name."""
each_source = pytest.mark.parametrize("kind", SOURCES)


@pytest.fixture(autouse=True)
def fresh() -> None:
    sys.modules.pop("shop", None)


def scanned(kind: str) -> Json:
    done = pdp("scan", "-m", "made.yaml", "--json", kind, *SOURCES[kind])
    assert done.code == any(at["kind"] != "absent" for at in done.json["findings"])
    return {"code": done.code, "found": [(at["kind"], at["tool"], at["message"]) for at in done.json["findings"]]}


@each_source
def test_imported_manifest_is_valid_and_scan_finds_no_difference(kind: str) -> None:
    assert pdp("manifest", "import", "-o", "made.yaml", kind, *SOURCES[kind])[:2] == (
        0, "made.yaml: review it, then: pdp init --from made.yaml\n",
    )  # fmt: skip
    assert pdp("manifest", "lint", "made.yaml").code == 0
    assert scanned(kind) == {"code": 0, "found": []}


@each_source
def test_calls_of_an_imported_manifest_are_denied_until_purposes_are_added(kind: str) -> None:
    made = pdp("manifest", "import", kind, *SOURCES[kind]).out
    write("made.yaml", made)
    write("named.yaml", made.replace("purposes: []", "purposes: [work]"))
    names = [tool["name"] for tool in yaml.safe_load(made)["tools"]]
    assert names
    for name in names:
        scopes = {f"tools.{name}": True}
        write("s.json", {"claims": {"sub": "ann", "emts": scopes}, "purpose": "work", "idempotency_key": "k"})
        write("p.json", {"tool": name, "arguments": ARGUMENTS.get((kind, name), {})})
        decided = [
            pdp("decide", "p.json", "-m", file, "-s", "s.json", "--json") for file in ("made.yaml", "named.yaml")
        ]

        assert [(done.json["verdict"], done.code) for done in decided] == [("DENY", 4), ("STEP_UP", 3)], name


def test_import_marks_guessed_fields_and_uses_only_the_effect_hints_of_annotations() -> None:
    made = pdp("manifest", "import", "mcp", "tools.json").out

    lines = [line for line in made.splitlines() if line.startswith("  ") and line[2] != " "]
    unmarked = {line.split(":")[0].strip() for line in lines if "# review: " not in line}
    assert unmarked == {"description", "schema", "}"}
    classes = {tool["name"]: (tool.get("effect_class"), tool["risk_tier"]) for tool in yaml.safe_load(made)["tools"]}
    assert classes == {
        "send_mail": ("commit-high", "high"), "echo": (None, "high"), "read_note": ("read-internal", "high"),
        "add_note": ("commit-low", "high"),
    }  # fmt: skip
    assert [tool["name"] for tool in yaml.safe_load(made)["tools"] if "idempotency" in tool] == [
        "send_mail", "echo", "add_note",
    ]  # fmt: skip
    assert made.count("destructive: true  # review: assumed; the source does not state that it can be undone") == 2
    assert (
        made.count(
            'safety: {"side_effects": "external"}  # review: assumed; the source does not limit it to internal systems'
        )
        == 1
    )
    assert "any text (not_a_tool.free_text)" in made


def test_import_of_hooks_notes_permission_rules_and_leaves_out_denied_tools() -> None:
    made = pdp("manifest", "import", "hooks", "claude-code").out

    file = Path(".claude/settings.json").absolute()
    bash = [f"{rule} in {file}" for rule in ("deny Bash(rm *)", "ask Bash", "allow Bash(git diff *)")]
    assert [tool["name"] for tool in yaml.safe_load(made)["tools"]] == ["run_command", "write_file", "mcp__notes__add"]
    assert [line for line in made.splitlines() if "fetch_url" in line or line.startswith("- name")] == [
        f"# Not listed, and so denied: fetch_url; deny WebFetch in {file}",
        f'- name: "run_command"  # review: rules of claude-code; {"; ".join(bash)}',
        f'- name: "write_file"  # review: rules of claude-code; deny Write in {file}; allow Edit in {file}',
        f'- name: "mcp__notes__add"  # review: rules of claude-code; allow mcp__notes__add in {file}',
    ]


NEW = {"name": "wipe_all", "inputSchema": {"type": "object"}}


def tool(**changed: Any) -> Callable[[], None]:
    return lambda: write("tools.json", {"tools": [*TOOLS[:2], {**TOOLS[2], **changed}, TOOLS[3]]})


def text(file: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        content = Path(file).read_text()
        assert old in content
        write(file, content.replace(old, new))

    return change


UNDECLARED = "is not in the manifest"
CHANGES: dict[str, tuple[str, Callable[[], None], list[tuple[str, str, str]]]] = {
    "a new tool": ("mcp", lambda: write("tools.json", [*TOOLS, NEW]), [("undeclared", "wipe_all", UNDECLARED)]),
    "a tool is gone": ("mcp", lambda: write("tools.json", TOOLS[1:]), [
        ("absent", "send_mail", "is not in the source"),
    ]),
    "a tool twice": ("mcp", lambda: write("tools.json", [*TOOLS, TOOLS[1]]), [
        ("undeclared", "echo", "has the name of another tool"), ("undeclared", "echo", "has the name of another tool"),
    ]),
    "a new argument": ("mcp", tool(inputSchema={"type": "object", "properties": {"id": {"type": "string"}, "x": {}}}), [
        ("drift", "read_note", "x: is new"),
    ]),
    "another type": ("mcp", tool(inputSchema={"type": "object", "properties": {"id": {"type": "integer"}}}), [
        ("drift", "read_note", "id: type string became integer"),
    ]),
    "it destroys": ("mcp", tool(annotations={"readOnlyHint": False, "destructiveHint": True}), [
        ("risk", "read_note", "says that it changes something; the manifest states read-internal, high risk"),
        ("risk", "read_note", "says that it destroys data; the manifest states read-internal, high risk"),
    ]),
    "an open world": ("mcp", tool(annotations={"readOnlyHint": True, "openWorldHint": True}), [
        ("risk", "read_note", "says that it reaches outside systems; the manifest states read-internal, high risk"),
    ]),
    "nothing said any more": ("mcp", tool(annotations={}), []),
    "another method": ("openapi", text("api.yaml", "    get:", "    put:"), [
        ("risk", "get_order", "says that it changes something; the manifest states read-external, high risk"),
    ]),
    "another body": ("openapi", text("api.yaml", "sku: {type: string}", "sku: {type: integer}"), [
        ("drift", "create_order", "lines[].sku: type string became integer"),
    ]),
    "a new parameter": ("app", text("shop.py", "int | None = None", "int | None = None, by: str = ''"), [
        ("drift", "add_order", "by: is new"),
    ]),
    "debug": ("app", text("shop.py", "debug = False", "debug = True"), [
        ("debug", "", "`debug` is on"),
    ]),
    "a new rule": ("hooks", text(".claude/settings.json", '"Edit"', '"Edit", "mcp__notes__wipe"'), [
        ("undeclared", "mcp__notes__wipe", UNDECLARED),
    ]),
    "switches": (
        "hooks",
        lambda: write(".claude/settings.json", {
            "disableAllHooks": True, "enableAllProjectMcpServers": True, "skipDangerousModePermissionPrompt": True,
            "permissions": {**SETTINGS["permissions"], "defaultMode": "bypassPermissions"},
        }),
        [("debug", "", at) for at in (
            "disableAllHooks is on", "enableAllProjectMcpServers is on",
            "skipDangerousModePermissionPrompt is on", "bypassPermissions is the defaultMode",
        )],
    ),
    "a new entry": ("agt", text("agt.yaml", '"read_note"', '"wipe_all": {}, "read_note"'), [
        ("undeclared", "wipe_all", UNDECLARED),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_scan_reports_a_tool_that_changed_since_its_import(name: str) -> None:
    kind, change, found = CHANGES[name]
    assert pdp("manifest", "import", "-o", "made.yaml", kind, *SOURCES[kind]).code == 0
    sys.modules.pop("shop", None)

    change()

    assert scanned(kind)["found"] == found


def test_scan_reports_a_risk_tier_that_is_too_low() -> None:
    made = pdp("manifest", "import", "mcp", "tools.json").out
    write("made.yaml", made.replace('risk_tier: "high"', 'risk_tier: "medium"'))
    hints = {"readOnlyHint": False, "destructiveHint": True}
    write("tools.json", [*TOOLS[:3], {**TOOLS[3], "annotations": hints}])
    assert scanned("mcp")["found"] == [
        ("risk", "add_note", "says that it destroys data; the manifest states commit-low, medium risk")
    ]

    write("tools.json", [*TOOLS[:3], {**TOOLS[3], "annotations": {**hints, "readOnlyHint": True}}])
    assert scanned("mcp")["found"] == [
        ("risk", "add_note", "says that it destroys data; the manifest states commit-low, medium risk")
    ]
    write("strict.yaml", pdp("manifest", "import", "mcp", "tools.json").out)
    classes = {
        tool["name"]: tool.get("effect_class") for tool in yaml.safe_load(Path("strict.yaml").read_text())["tools"]
    }
    assert classes["add_note"] == "commit-high"


def test_scan_applies_governance_and_prints_findings_with_hints() -> None:
    assert pdp("manifest", "import", "-o", "made.yaml", "mcp", "tools.json").code == 0
    rules = {"effect_class": "commit-low", "idempotency": {"required": True}, "accepts": {"not_a_tool.free_text": "id"}}
    write("gov.yaml", {"actions": {"read_note": rules}})
    tool(annotations={"readOnlyHint": False})()
    write("bare.yaml", Path("made.yaml").read_text().replace('"read_note"', '"read_notes"'))

    assert pdp("scan", "mcp", "tools.json", "-m", "made.yaml", "-g", "gov.yaml")[:2] == (0, "tools: 4, findings: 0\n")
    done = pdp("scan", "mcp", "tools.json", "-m", "made.yaml")
    assert (done.code, done.out.splitlines()) == (1, [
        "risk: tools.json: read_note: says that it changes something; the manifest states read-internal, high risk",
        "    hint: correct the manifest, or the tool's annotations",
        "tools: 4, findings: 1",
    ])  # fmt: skip
    done = pdp("scan", "mcp", "tools.json", "-m", "bare.yaml")
    assert (done.code, done.out.splitlines()) == (1, [
        "undeclared: tools.json: read_note: is not in the manifest",
        "    hint: declare the tool in the manifest, or remove it from the source",
        "absent: manifest: read_notes: is not in the source",
        "    hint: remove the entry if the tool no longer exists",
        "tools: 4, findings: 1",
    ])  # fmt: skip


@pytest.mark.process
def test_scan_reports_a_dangerous_command_option() -> None:
    assert pdp("manifest", "import", "-o", "made.yaml", "mcp", "tools.json").code == 0

    done = pdp("scan", "-m", "made.yaml", "command", *SOURCES["command"], "--dangerously-skip-permissions")

    assert (done.code, done.out.splitlines()[0]) == (
        1, f"debug: {sys.executable}: the option --dangerously-skip-permissions",
    )  # fmt: skip


@pytest.mark.process
def test_tools_of_an_http_server_are_imported(tmp_path: Path) -> None:
    with http_server(tmp_path, "web", tools=TOOLS):
        url = Path("web/url").read_text()
        asked, saved = (pdp("manifest", "import", "mcp", source).out for source in (url, "tools.json"))

    assert asked == saved.replace("# review: tools.json", f"# review: {url}")


@pytest.mark.process
def test_tool_with_a_too_large_number_is_left_out(tmp_path: Path) -> None:
    large = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**63 - 1}}}
    with http_server(tmp_path, "web", tools=[*TOOLS, {"name": "large", "inputSchema": large}]):
        done = pdp("manifest", "import", "mcp", Path("web/url").read_text())

    names = [tool["name"] for tool in yaml.safe_load(done.out)["tools"]]
    assert (done.code, names) == (1, [tool["name"] for tool in TOOLS])
    number = "number `9223372036854775807` is beyond 2^53-1"
    assert done.err.splitlines()[-1] == f"left out: 'large': {number}; ask the author of the tool to correct the tool"


def test_import_does_not_overwrite_a_file() -> None:
    write("made.yaml", "mine")

    done = pdp("manifest", "import", "-o", "made.yaml", "mcp", "tools.json")

    assert (done.code, done.out, Path("made.yaml").read_text()) == (2, "", "mine")
    assert done.err.startswith("error: made.yaml: exists already and is not overwritten\n")


def test_openapi_schemas_are_imported_with_the_definitions_that_they_share() -> None:
    made = pdp("manifest", "import", "-o", "made.yaml", "openapi", "api.yaml")
    tools = {tool["name"]: tool["schema"] for tool in read_document("made.yaml").value["tools"]}

    assert made.code == 0
    of_id = {"type": "integer", "description": "Which"}
    line = {"type": "object", "properties": {"sku": {"type": "string"}}}
    order = {
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}}, "parent": {"$ref": "#/$defs/Order"},
    }  # fmt: skip
    alone = {"type": "object", "properties": {"id": of_id}, "required": ["id"], "additionalProperties": False}
    assert tools == {
        "get_order": alone,
        "delete_orders_id": alone,
        "create_order": {
            "type": "object", "properties": {"id": of_id, **order}, "required": ["id", "lines"],
            "additionalProperties": False,
            "$defs": {"Line": line, "Order": {"type": "object", "required": ["lines"], "properties": order}},
        },
    }  # fmt: skip
