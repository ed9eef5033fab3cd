"""Tests of sources of tools that are malicious or malformed, or that never answer."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.scan.exposed import asked_tools
from tests.support.command_line import pdp

OBJECT = {"type": "object"}
STRANGE = "*a # \" ' \n- name: b\n  risk_tier: low\r\t\x00\x1b[2J\x85\u2028\u202e\ufeff\U0001f600 `{x}` &b !c %d @e |>"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))


def write(name: str, value: Any) -> None:
    Path(name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def imported(*tools: Any) -> tuple[int, Any, list[str]]:
    write("tools.json", {"tools": tools})
    done = pdp("manifest", "import", "mcp", "tools.json", "--json")
    made = done.json["manifest"]
    assert made.replace("\n", "").isprintable()
    return done.code, read_document("made.yaml", text=made).value["tools"], [name for name, _ in done.json["left_out"]]


def test_text_of_a_tool_cannot_escape_its_yaml_value() -> None:
    schema = {"type": "object", "properties": {STRANGE: {"type": "string", "description": STRANGE, "enum": [STRANGE]}}}
    code, tools, left_out = imported(
        {"name": "ok", "description": STRANGE, "inputSchema": schema},
        {"name": STRANGE, "description": "d", "inputSchema": OBJECT},
    )

    assert (code, left_out) == (1, [STRANGE])
    assert [(tool["name"], tool["description"], tool["schema"]) for tool in tools] == [("ok", STRANGE, schema)]
    assert tools[0]["risk_tier"] == "high"


def test_rules_and_names_cannot_escape_their_yaml_comment() -> None:
    Path(".claude").mkdir()
    rules = {"allow": [f"Bash({STRANGE})", f"mcp__{STRANGE}"], "deny": [f"x{STRANGE}"]}
    write(".claude/settings.json", {"permissions": rules})
    write("agt.json", {"agent_control_specification_version": "0.3", "tools": {"ok": {STRANGE: STRANGE}, STRANGE: 1}})

    for kind, source, name, left_out in (
        ("hooks", "claude-code", "run_command", [f"mcp__{STRANGE}"]), ("agt", "agt.json", "ok", [STRANGE]),
    ):  # fmt: skip
        made = pdp("manifest", "import", kind, source, "--json").json
        tools = read_document("made.yaml", text=made["manifest"]).value["tools"]
        assert ([tool["name"] for tool in tools], [name for name, _ in made["left_out"]]) == ([name], left_out)
        assert made["manifest"].replace("\n", "").isprintable()


SETTINGS: list[Any] = [
    [], "no", {"permissions": []}, {"permissions": {"allow": "Bash"}, "x": 1}, {"permissions": {"allow": [1]}},
    {"permissions": {"deny": 1}}, '{"permissions": {}} // mine',
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_import_of_invalid_settings_names_the_file(settings: Any) -> None:
    Path(".claude").mkdir()
    write(".claude/settings.json", settings)

    done = pdp("manifest", "import", "hooks", "claude-code")

    assert (done.code, done.out) == (2, "")
    assert str(Path(".claude/settings.json").absolute()) in done.err


@pytest.mark.parametrize("text", ["1e5", "no", "0x1F", "~", "null", "2026-01-01", "-", "---", "", " "])
def test_imported_text_that_looks_like_another_yaml_type_remains_a_string(text: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "enum": [text]}}}

    assert imported({"name": "ok", "inputSchema": schema})[1][0]["schema"] == schema


LEFT_OUT = {
    "no object": {"type": "array"},
    "no schema": {"type": "objects"},
    "remote": {"type": "object", "properties": {"x": {"$ref": "https://example.com/x.json#/y"}}},
    "a file": {"type": "object", "properties": {"x": {"$ref": "/etc/passwd"}}},
    "nowhere": {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}},
    "itself": {"$ref": "#"},
    "an anchor": {"type": "object", "$anchor": "x"},
    "a pattern": {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a"}}},
    "a long key": {"type": "object", "properties": {"k" * 2000: {"type": "string"}}},
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_tool_with_unusable_schema_is_left_out_and_reported_by_scan(name: str) -> None:
    assert imported({"name": "odd", "inputSchema": LEFT_OUT[name]}, {"name": "ok", "inputSchema": OBJECT})[2] == ["odd"]
    assert pdp("manifest", "import", "-o", "made.yaml", "mcp", "tools.json").code == 1

    assert [at["tool"] for at in pdp("scan", "-m", "made.yaml", "mcp", "tools.json", "--json").json["findings"]] == [
        "odd"
    ]


def test_import_leaves_out_only_unreadable_tools_and_prints_a_hint() -> None:
    ahead = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?!x)a$"}}}
    code, tools, _ = imported(
        {"name": "odd", "inputSchema": ahead}, {"inputSchema": 1}, {"name": "ok", "inputSchema": OBJECT}
    )

    assert (code, [tool["name"] for tool in tools]) == (1, ["ok"])
    assert pdp("manifest", "import", "mcp", "tools.json").err == (
        "left out: 'odd': the pattern `^(?!x)a$` cannot be checked in linear time; ask the author of the tool "
        "to correct the tool: "
        "remove look-around, or add `maxLength`, `enum` or `const`\n"
        "left out: \"{'inputSchema': 1}\": not a tool; a tool of `tools/list` has a name and an inputSchema\n"
    )


def test_import_writes_the_governance_file_that_a_tool_needs() -> None:
    anything = {"type": "object", "properties": {"x": {}, "o": {"type": "object", "additionalProperties": True}}}
    write("tools.json", [{"name": "read_any", "inputSchema": anything}, {"name": "ok", "inputSchema": OBJECT}])
    done = pdp("manifest", "import", "mcp", "tools.json", "-o", "made.yaml")

    assert (done.code, done.out) == (
        0, "made.yaml: review it, then: pdp init --from made.yaml --governance made.governance.yaml\n",
    )  # fmt: skip
    (accepted,) = read_document("made.governance.yaml").value["actions"].items()
    assert accepted == ("read_any", {"accepts": {"not_a_tool.untyped": "the source gives no further information"}})
    scanned = pdp("scan", "mcp", "tools.json", "-m", "made.yaml", "-g", "made.governance.yaml")
    assert (scanned.code, scanned.out) == (0, "tools: 2, findings: 0\n")
    assert pdp("init", "new", "--from", "made.yaml", "--governance", "made.governance.yaml").code == 0
    assert pdp("manifest", "lint", "made.yaml", "-g", "new/governance.yaml").code == 0


def test_tools_with_the_same_name_are_left_out() -> None:
    same = {"name": "same", "inputSchema": OBJECT}

    assert imported(same, same, {"name": "ok", "inputSchema": OBJECT})[2] == ["same", "same"]


@pytest.mark.parametrize(
    "said", [{"readOnlyHint": "yes", "openWorldHint": 0}, {"readOnlyHint": 1}, "readOnlyHint", [], None]
)
def test_annotation_that_is_not_a_boolean_is_ignored(said: Any) -> None:
    _, tools, _ = imported({"name": "ok", "inputSchema": OBJECT, "annotations": said})

    assert (tools[0]["effect_class"], tools[0]["destructive"]) == ("commit-high", True)


@pytest.mark.parametrize("wrapped", [False, True])
def test_tool_list_with_or_without_json_rpc_envelope_is_read(wrapped: bool) -> None:
    result = {"tools": [{"name": "ok", "inputSchema": OBJECT}]}
    write("tools.json", {"jsonrpc": "2.0", "id": 1, "result": result} if wrapped else result)

    assert pdp("manifest", "import", "mcp", "tools.json", "--json").json["tools"] == ["ok"]


def test_recursive_schema_is_imported_unchanged() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "x": {"type": "string"}}}

    assert imported({"name": "ok", "inputSchema": schema})[1][0]["schema"] == schema


def nested(depth: int) -> str:
    return '{"properties":{"x":' * depth + '{"type":"string"}' + "}}" * depth


DOCUMENT: dict[str, Any] = {"openapi": "3.1.0", "paths": {"/x": {"get": {}}}}
GET: dict[str, Any] = DOCUMENT["paths"]["/x"]["get"]


def document(**operation: Any) -> dict[str, Any]:
    return {**DOCUMENT, "paths": {"/x": {"get": operation}}}


def parameter(**stated: Any) -> dict[str, Any]:
    return document(parameters=[{"name": "x", "in": "query", **stated}])


BROKEN: dict[str, tuple[str, Any]] = {
    "mcp: no list": ("mcp", {"tools": 1}),
    "mcp: a text": ("mcp", "tools"),
    "mcp: no name": ("mcp", [{"inputSchema": OBJECT}]),
    "mcp: a number for a name": ("mcp", [{"name": 1, "inputSchema": OBJECT}]),
    "mcp: no schema": ("mcp", [{"name": "x"}]),
    "mcp: deep": ("mcp", '{"tools":[{"name":"x","inputSchema":' + nested(50_000) + "}]}"),
    "mcp: not JSON": ("mcp", '{"tools":'),
    "openapi: another": ("openapi", {"swagger": "2.0", "paths": {}}),
    "openapi: a list": ("openapi", []),
    "openapi: no paths": ("openapi", {"openapi": "3.1.0"}),
    "openapi: paths of a list": ("openapi", {"openapi": "3.1.0", "paths": []}),
    "openapi: an operation of a text": ("openapi", {"openapi": "3.1.0", "paths": {"/x": {"get": "x"}}}),
    "openapi: a circle of parameters": ("openapi", {
        **document(parameters=[{"$ref": "#/components/parameters/x"}]),
        "components": {"parameters": {"x": {"$ref": "#/components/parameters/x"}}},
    }),
    "openapi: a parameter elsewhere": ("openapi", document(parameters=[{"$ref": "https://example.com/x"}])),
    "openapi: a path elsewhere": ("openapi", {"openapi": "3.1.0", "paths": {"/x": {"$ref": "x.yaml#/x"}}}),
    "openapi: a parameter without schema": ("openapi", parameter()),
    "openapi: content of nothing": ("openapi", parameter(content={})),
    "openapi: a schema of a list": ("openapi", parameter(schema=[1])),
    "openapi: a name of a number": ("openapi", document(parameters=[{"name": 1, "in": "query", "schema": {}}])),
    "openapi: a body of a list": ("openapi", document(requestBody={"content": {"application/json": []}})),
    "agt: no tools": ("agt", {"agent_control_specification_version": "0.3"}),
    "agt: another": ("agt", {"tools": {}}),
    "agt: in parts": ("agt", {"agent_control_specification_version": "0.3", "extends": ["x"], "tools": {}}),
    "agt: tools of a list": ("agt", {"agent_control_specification_version": "0.3", "tools": []}),
    "app: it raises": ("app", "raise ValueError('no')"),
    "app: it exits": ("app", "raise SystemExit(0)"),
    "app: it is no Python": ("app", "def"),
    "app: no such object": ("app", "OTHER = []"),
    "app: a number": ("app", "TOOLS = 1"),
    "app: numbers": ("app", "TOOLS = [1]"),
    "app: a class": ("app", "class T: ...\nTOOLS = [T]"),
    "app: written in C": ("app", "TOOLS = [print]"),
    "app: a type of nothing": ("app", "def f(x: 'Nothing'): ...\nTOOLS = [f]"),
    "app: a default of no JSON": ("app", "def f(x: float = float('inf')): ...\nTOOLS = [f]"),
    "app: no end": ("app", "class T:\n    def __getattr__(self, name): return self\nTOOLS = [T()]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_import_of_a_broken_source_names_the_source(name: str) -> None:
    kind, content = BROKEN[name]
    source = "source.json" if kind != "app" else "broken_app:TOOLS"
    write("broken_app.py" if kind == "app" else source, content)
    sys.modules.pop("broken_app", None)

    done = pdp("manifest", "import", kind, source)

    assert (done.code, done.out) == (2, "")
    assert source.partition(".")[0] in done.err.splitlines()[0], done.err
    assert "Traceback" not in done.err


def test_import_of_a_swagger_document_hints_at_a_conversion() -> None:
    write("source.json", {"swagger": "2.0", "paths": {}})

    assert pdp("manifest", "import", "openapi", "source.json").err.splitlines() == [
        "error: source.json: Swagger 2.0 is not supported, only OpenAPI 3",
        "    hint: convert it to OpenAPI 3, for example with swagger2openapi",
    ]


def test_output_of_a_scanned_python_module_goes_to_stderr() -> None:
    write("talking.py", "print('hello')\ndef add_one(x: int): ...\nTOOLS = [add_one]")

    done = pdp("manifest", "import", "app", "talking:TOOLS", "--json")

    assert (done.code, done.json["tools"], done.err) == (0, ["add_one"], "hello\n")


def test_tool_list_with_many_tools_is_imported() -> None:
    text = "x" * 10_000
    tools = [{"name": f"tool_{at}", "description": text, "inputSchema": OBJECT} for at in range(300)]

    assert (len(imported(*tools)[1]), imported({**tools[0], "description": text * 3})[2]) == (300, ["tool_0"])


@pytest.mark.process
def test_scan_stops_an_mcp_server_that_never_answers() -> None:
    write("silent.py", "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(3600)")

    with pytest.raises(UsageError, match=r"no answer in 2 seconds"):
        asked_tools(sys.executable, "silent.py", timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


@pytest.mark.process
@pytest.mark.parametrize("program", ["print('no message')", "import sys; sys.exit(3)"])
def test_scan_of_a_command_that_is_not_an_mcp_server_is_an_error(program: str) -> None:
    done = pdp("manifest", "import", "command", "--", sys.executable, "-c", program)

    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "    hint: check that the server starts and answers tools/list"


def test_invalid_usage_of_scan_exits_with_2() -> None:
    write("tools.json", [])
    write("m.yaml", 'manifest_version: "1"\ntools: []\n')

    assert pdp("manifest", "import", "mcp", "tools.json")[:2] == (0, (
        "# Draft: review each line marked `review`. Until then every call is denied, also of tools not listed here.\n"
        'manifest_version: "1"\ntools: []\n'
    ))  # fmt: skip
    for line in (
        ["mcp", "tools.json", "tools.json"], ["mcp", "no.json"], ["hooks", "no"], ["mcp", "http://u:p@example.com"],
        ["mcp", "https://127.0.0.1:1/mcp"], ["command", "--", "no-such-program"], ["other", "tools.json"], ["mcp"],
    ):  # fmt: skip
        assert pdp("scan", *line, "-m", "m.yaml")[:2] == (2, ""), line
    assert pdp("scan", "mcp", "tools.json")[:2] == (2, "")
    assert pdp("scan", "mcp", "http://example.com", "-m", "m.yaml").err.splitlines()[0] == (
        "error: http://example.com: has to begin with https:// and must not name a user"
    )
