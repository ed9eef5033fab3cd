"""Tool calls are read in the formats of model APIs, and each result is written in the format of its call."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from pdp import EmbeddedEngine, MemoryAudit, Pep
from pdp.errors import UsageError
from pdp.manifest.load import load_effective
from pdp.model_calls import CallForm, ToolCall
from pdp.proposal import Proposal, ProposalRejectedError, RejectionCode

ARGUMENTS = {"city": "Turin", "days": 2}
TEXT = '{"city": "Turin", "days": 2}'


class Function(BaseModel):
    arguments: str
    name: str


class ChatToolCall(BaseModel):
    """A tool call of a chat completion, written as an object of the OpenAI SDK."""

    id: str
    function: Function
    type: str = "function"


class GeminiCall(BaseModel):
    """A function call as the Gemini SDK writes it: field names are in camel case, and absent fields are null."""

    model_config = ConfigDict(populate_by_name=True)

    id: str | None = None
    args: dict[str, Any] | None = None
    name: str | None = None
    partial_args: list[Any] | None = Field(default=None, alias="partialArgs")


class GeminiPart(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    text: str | None = None
    function_call: GeminiCall | None = Field(default=None, alias="functionCall")
    thought_signature: str | None = Field(default=None, alias="thoughtSignature")


@pytest.mark.parametrize(
    ("call", "form", "call_id"),
    [
        pytest.param(
            {"id": "call_8Fq", "type": "function", "function": {"name": "plan_trip", "arguments": TEXT}},
            "openai", "call_8Fq", id="chat completions",
        ),
        pytest.param(
            {"index": 0, "id": "call_1", "function": {"name": "plan_trip", "arguments": ARGUMENTS}},
            "openai", "call_1", id="a compatible API, arguments as an object",
        ),
        pytest.param(
            ChatToolCall(id="call_2", function=Function(name="plan_trip", arguments=TEXT)),
            "openai", "call_2", id="an SDK's object",
        ),
        pytest.param(
            {"type": "function_call", "id": "fc_1", "call_id": "call_3", "name": "plan_trip", "arguments": TEXT,
             "status": "completed"},
            "openai-responses", "call_3", id="responses",
        ),
        pytest.param(
            {"type": "tool_use", "id": "toolu_01", "name": "plan_trip", "input": ARGUMENTS,
             "caller": {"type": "direct"}},
            "anthropic", "toolu_01", id="anthropic",
        ),
        pytest.param(
            {"jsonrpc": "2.0", "id": 7, "method": "tools/call",
             "params": {"name": "plan_trip", "arguments": ARGUMENTS, "_meta": {"progressToken": 1}}},
            "mcp", "7", id="mcp, the request",
        ),
        pytest.param({"name": "plan_trip", "arguments": ARGUMENTS}, "mcp", None, id="mcp, its params"),
        pytest.param(
            {"functionCall": {"name": "plan_trip", "args": ARGUMENTS}, "thoughtSignature": "Cg=="},
            "gemini", None, id="gemini, the part",
        ),
        pytest.param(
            {"function_call": {"id": "a1", "name": "plan_trip", "args": ARGUMENTS}}, "gemini", "a1", id="gemini, snake",
        ),
        pytest.param(
            GeminiPart(function_call=GeminiCall(id="a2", name="plan_trip", args=ARGUMENTS)), "gemini", "a2", id="part",
        ),
        pytest.param(GeminiCall(name="plan_trip", args=ARGUMENTS), "gemini", None, id="gemini, the call"),
        pytest.param(ToolCall("c1", "plan_trip", TEXT), None, "c1", id="of an application"),
    ],
)  # fmt: skip
def test_pep_accepts_calls_in_the_formats_of_model_apis(call: Any, form: str | None, call_id: str | None) -> None:
    read = Proposal.read(call)

    assert (read, read.text) == (Proposal("plan_trip", ARGUMENTS), b'{"city":"Turin","days":2}')
    assert read.call is not None
    assert (read.call.form, read.call.id, read.call.tool) == (form, call_id, "plan_trip")
    if isinstance(call, dict):
        assert Proposal.read(json.dumps(call)) == read
    assert Proposal.read(read).call == read.call


@pytest.mark.parametrize(
    "call",
    [
        pytest.param({"id": "c", "type": "function", "function": {"name": "t", "arguments": ""}}, id="empty text"),
        pytest.param({"type": "tool_use", "id": "c", "name": "t", "input": {}}, id="an empty object"),
        pytest.param({"method": "tools/call", "params": {"name": "t"}}, id="left out"),
        pytest.param(GeminiCall(name="t"), id="null"),
    ],
)
def test_missing_call_arguments_become_an_empty_object(call: Any) -> None:
    assert Proposal.read(call) == Proposal("t", {})


NOT_AN_ID = "id has to be a string of at most 1024 characters"
FORMS = "or is a call in the format of OpenAI, Anthropic, MCP or Gemini"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        pytest.param({"call": "t"}, f"unknown field 'call': a proposal has tool and arguments, {FORMS}", id="no form"),
        pytest.param(
            {"type": "custom", "id": "c", "custom": {"name": "t", "input": "x"}},
            f"unknown field 'custom': a proposal has tool and arguments, {FORMS}", id="another kind",
        ),
        pytest.param(
            {"function": {"name": "t", "arguments": "{}"}, "functionCall": {"name": "u", "args": {}}},
            "unknown field 'functionCall' in a call of the form openai", id="two forms",
        ),
        pytest.param(
            {"tool": "t", "function": {"name": "u", "arguments": "{}"}},
            "unknown field 'function': a proposal has tool and arguments", id="two forms, ours first",
        ),
        pytest.param(
            {"function": {"name": "t", "arguments": "{}"}, "name": "u"},
            "unknown field 'name' in a call of the form openai", id="two names",
        ),
        pytest.param(
            {"type": "function_call", "call_id": "c", "name": "lookup", "arguments": "{}", "namespace": "crm"},
            "unknown field 'namespace' in a call of the form openai-responses", id="a name that belongs to something",
        ),
        pytest.param(
            {"functionCall": {"name": "t", "args": {}, "willContinue": True}},
            "unknown field 'willContinue' in a call of the form gemini", id="half a call",
        ),
        pytest.param(
            {"function": "t"}, "function has to be an object in a call of the form openai", id="no object",
        ),
        pytest.param(
            {"method": "tools/call"}, "params has to be an object in a call of the form mcp", id="no params",
        ),
        pytest.param(
            {"type": "tool_use", "id": ["c"], "name": "t", "input": {}}, NOT_AN_ID, id="id",
        ),
        pytest.param(
            {"type": "tool_use", "id": "c" * 1025, "name": "t", "input": {}}, NOT_AN_ID, id="a long id",
        ),
        pytest.param(
            {"type": "tool_use", "id": "\ud800", "name": "t", "input": {}}, NOT_AN_ID, id="an id that is not text",
        ),
        pytest.param(
            {"method": "tools/call", "id": 10**5000, "params": {"name": "t"}}, NOT_AN_ID, id="an id of 5,000 digits",
        ),
        pytest.param(
            {"type": "tool_use", "name": "t", "input": {}, 10**5000: 1},
            "unknown field 'int' in a call of the form anthropic", id="a field without a name",
        ),
        pytest.param(
            {"type": "tool_use", "id": "c", "name": None, "input": {}},
            "tool has to be a string and arguments an object", id="no name",
        ),
        pytest.param(
            {"type": "tool_use", "id": "c", "name": "t", "input": [1]},
            "tool has to be a string and arguments an object", id="a list of arguments",
        ),
        pytest.param(
            {"function": {"name": "t", "arguments": '{"a": 1, "a": 2}'}},
            "the text of the arguments: value: duplicate key in an object", id="a key twice",
        ),
        pytest.param(
            {"function": {"name": "t", "arguments": '{"a": 1'}},
            "the text of the arguments: value: not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)", id="cut",
        ),
        pytest.param(
            {"function": {"name": "t", "arguments": '{"a": 1}, "tool": "u"'}},
            "the text of the arguments: value: not JSON: Extra data: line 1 column 9 (char 8)", id="smuggled",
        ),
        pytest.param(
            {"function": {"name": "t", "arguments": "[" * 20_000}},
            "the text of the arguments: value: nested deeper than 32 levels", id="deep",
        ),
        pytest.param(
            {"name": "t", "arguments": {"a": {1}}}, "arguments.a: set is not a type of JSON", id="not JSON",
        ),
    ],
)  # fmt: skip
def test_pep_rejects_calls_in_an_unknown_format(call: Any, reason: str) -> None:
    with pytest.raises(ProposalRejectedError) as caught:
        Proposal.read(call)

    assert (caught.value.rejection, caught.value.message) == (RejectionCode.INVALID_PAYLOAD, reason)


class Unwritable:
    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("secret")


def test_pep_rejects_sdk_objects_that_cannot_be_serialised() -> None:
    with pytest.raises(ProposalRejectedError, match=r"^Unwritable cannot be written as JSON: RuntimeError$"):
        Proposal.read(Unwritable())


MANIFEST = """
manifest_version: 2026.1.0
tools:
  - {name: plan_trip, effect_class: pure, risk_tier: low, scopes: [trips],
     schema: {type: object, required: [city], properties: {city: {type: string}, days: {type: integer}}}}
  - {name: book_trip, effect_class: pure, risk_tier: low, scopes: [bookings], schema: {type: object}}
"""
SESSION = {"claims": {"sub": "ann", "emts": {"trips": True}}}


def plan_trip(city: str, days: int = 1) -> Any:
    if city == "Atlantis":
        raise LookupError("under water")
    return {"city": city, "nights": days - 1} if days else "stay at home"


@pytest.fixture(scope="module")
def pep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pep]:
    file = tmp_path_factory.mktemp("calls") / "manifest.yaml"
    file.write_text(MANIFEST)
    manifest = load_effective(file, None)
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as engine:
        yield Pep(manifest, engine, tools={"plan_trip": plan_trip})


def call_in(form: CallForm, tool: str, arguments: str) -> dict[str, Any]:
    """Return a tool call in the given format. If the format has textual arguments, the arguments become a text."""
    plain = json.loads(arguments) if arguments.endswith("}") else arguments
    calls: dict[CallForm, dict[str, Any]] = {
        CallForm.OPENAI: {"id": "c1", "type": "function", "function": {"name": tool, "arguments": arguments}},
        CallForm.OPENAI_RESPONSES: {"type": "function_call", "call_id": "c1", "name": tool, "arguments": arguments},
        CallForm.ANTHROPIC: {"type": "tool_use", "id": "c1", "name": tool, "input": plain},
        CallForm.MCP: {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": plain}},
        CallForm.GEMINI: {"functionCall": {"id": "c1", "name": tool, "args": plain}},
    }
    return calls[form]


def result_in(form: CallForm, tool: str, content: str, result: Any, *, is_error: bool) -> dict[str, Any]:
    """Return the result message that the test expects, in the given format."""
    structured = {"structuredContent": result} if isinstance(result, dict) else {}
    response = {"error": content} if is_error else {"output": result}
    answers: dict[CallForm, dict[str, Any]] = {
        CallForm.OPENAI: {"role": "tool", "tool_call_id": "c1", "content": content},
        CallForm.OPENAI_RESPONSES: {"type": "function_call_output", "call_id": "c1", "output": content},
        CallForm.ANTHROPIC: {"type": "tool_result", "tool_use_id": "c1", "content": content, "is_error": is_error},
        CallForm.MCP: {"content": [{"type": "text", "text": content}], **structured, "isError": is_error},
        CallForm.GEMINI: {"functionResponse": {"id": "c1", "name": tool, "response": response}},
    }
    return answers[form]


@pytest.mark.parametrize("form", list(CallForm))
@pytest.mark.parametrize(
    ("tool", "arguments", "content", "result"),
    [
        ("plan_trip", TEXT, '{"city":"Turin","nights":1}', {"city": "Turin", "nights": 1}),
        ("plan_trip", '{"city": "Turin", "days": 0}', "stay at home", "stay at home"),
        ("plan_trip", '{"city": "Atlantis"}', "TOOL_EXECUTION_FAILED: LookupError", None),
        ("book_trip", "{}", "POLICY_VIOLATION: DENY: scopes.missing: ", None),
        ("plan_trip", '{"city": 7}', 'INVALID_PAYLOAD: arguments.city: 7 is not of type "string"', None),
        ("plan_trip", '{"city": "Tu', "INVALID_PAYLOAD: the text of the arguments: value: not JSON: ", None),
        ("drop_trip", "{}", "INVALID_TOOL_NAME: 'drop_trip' is not a tool of manifest 2026.1.0", None),
    ],
)
def test_tool_result_has_the_same_format_as_its_call(
    pep: Pep, form: CallForm, tool: str, arguments: str, content: str, result: Any
) -> None:
    audit = MemoryAudit()
    evaluation = pep.with_changes(audit=audit).call(call_in(form, tool, arguments), SESSION)

    # A content that ends with ": " is only the start of the expected message. The policy or the parser writes the other
    # words.
    whole = evaluation.answer.text if content.endswith(": ") else content
    assert evaluation.answer.text.startswith(content)
    assert evaluation.as_tool_result() == result_in(form, tool, whole, result, is_error=result is None)
    # The sender of a JSON-RPC request chooses the id of the request, so audit events do not contain this id.
    call_id = "1" if form is CallForm.MCP else "c1"
    assert evaluation.trace.tool_call_id == call_id
    assert {event["tool_call_id"] for event in audit.events} == {call_id}


def test_invalid_session_gives_a_tool_result_for_the_call_id(pep: Pep) -> None:
    evaluation = pep.call(call_in(CallForm.ANTHROPIC, "plan_trip", TEXT), {"claims": []})

    assert evaluation.codes == ("decision.request_invalid",)
    assert evaluation.as_tool_result()["tool_use_id"] == "c1"


def test_trace_has_the_call_id_of_the_application_but_the_tool_result_has_the_id_of_the_model(pep: Pep) -> None:
    evaluation = pep.call(call_in(CallForm.OPENAI, "plan_trip", TEXT), SESSION, tool_call_id="mine")

    assert evaluation.trace.tool_call_id == "mine"
    assert evaluation.as_tool_result()["tool_call_id"] == "c1"


def test_caller_can_choose_the_format_of_a_tool_result(pep: Pep) -> None:
    evaluation = pep.call({"tool": "plan_trip", "arguments": ARGUMENTS}, SESSION, tool_call_id="c1")
    content, result = '{"city":"Turin","nights":1}', {"city": "Turin", "nights": 1}

    for form in CallForm:
        answer = result_in(form, "plan_trip", content, result, is_error=False)
        assert evaluation.as_tool_result(form.value) == answer


@pytest.mark.parametrize(
    ("form", "made", "fault"),
    [
        (None, True, "the proposal does not have a form of a model's API (pass one of openai, openai-responses, "),
        ("grok", True, "'grok' is not a form of a model's API (pass one of openai, openai-responses, "),
        ("openai", False, "the call was decided but not run, so it has no result (run the call with `Pep.call`)"),
    ],
)
def test_as_tool_result_raises_without_a_format_or_a_result(pep: Pep, form: str | None, made: bool, fault: str) -> None:
    ask = pep.call if made else pep.decide
    evaluation = ask({"tool": "plan_trip", "arguments": ARGUMENTS}, SESSION)

    with pytest.raises(UsageError) as caught:
        evaluation.as_tool_result(form)
    assert str(caught.value).startswith(fault)
