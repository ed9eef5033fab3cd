"""Calls as the APIs of models spell them: what is read of them, and what goes back."""

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
    """The inner object of a chat completion's tool call, as its SDK has it."""

    arguments: str
    name: str


class ChatToolCall(BaseModel):
    """A chat completion's tool call, as its SDK has it."""

    id: str
    function: Function
    type: str = "function"


class GeminiCall(BaseModel):
    """A function call of an SDK that writes camel case and has fields for whatever is not stated."""

    model_config = ConfigDict(populate_by_name=True)

    id: str | None = None
    args: dict[str, Any] | None = None
    name: str | None = None
    partial_args: list[Any] | None = Field(default=None, alias="partialArgs")


class GeminiPart(BaseModel):
    """The part of an answer that holds a function call."""

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
def test_a_call_in_the_form_of_a_models_api_is_a_proposal(call: Any, form: str | None, call_id: str | None) -> None:
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
def test_a_call_without_arguments_has_none(call: Any) -> None:
    assert Proposal.read(call) == Proposal("t", {})


NOT_AN_ID = "id has to be a string of at most 1024 characters"
FORMS = "or is a call as OpenAI, Anthropic, MCP or Gemini spell it"


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
            {"function": "t"}, "a call of the form openai has an object as function", id="no object",
        ),
        pytest.param(
            {"method": "tools/call"}, "a call of the form mcp has an object as params", id="no params",
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
            "the text of the arguments: value: a key stands twice in one object", id="a key twice",
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
def test_what_is_no_call_of_any_form_is_rejected(call: Any, reason: str) -> None:
    with pytest.raises(ProposalRejectedError) as caught:
        Proposal.read(call)

    assert (caught.value.rejection, caught.value.message) == (RejectionCode.INVALID_PAYLOAD, reason)


class Unwritable:
    """An object that fails when it is written."""

    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("secret")


def test_an_object_that_cannot_be_written_is_rejected() -> None:
    with pytest.raises(ProposalRejectedError, match=r"^Unwritable is not JSON: RuntimeError$"):
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


def made_as(form: CallForm, tool: str, arguments: str) -> dict[str, Any]:
    """A call as each API has it; the arguments are text where the API has text."""
    plain = json.loads(arguments) if arguments.endswith("}") else arguments
    calls: dict[CallForm, dict[str, Any]] = {
        CallForm.OPENAI: {"id": "c1", "type": "function", "function": {"name": tool, "arguments": arguments}},
        CallForm.OPENAI_RESPONSES: {"type": "function_call", "call_id": "c1", "name": tool, "arguments": arguments},
        CallForm.ANTHROPIC: {"type": "tool_use", "id": "c1", "name": tool, "input": plain},
        CallForm.MCP: {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": plain}},
        CallForm.GEMINI: {"functionCall": {"id": "c1", "name": tool, "args": plain}},
    }
    return calls[form]


def answered_as(form: CallForm, tool: str, content: str, result: Any, *, is_error: bool) -> dict[str, Any]:
    """What each API takes for the call."""
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
def test_a_result_goes_back_in_the_form_of_its_call(
    pep: Pep, form: CallForm, tool: str, arguments: str, content: str, result: Any
) -> None:
    audit = MemoryAudit()
    evaluation = pep.with_changes(audit=audit).call(made_as(form, tool, arguments), SESSION)

    # What comes after it is the policy's or the parser's own text.
    whole = evaluation.answer.text if content.endswith(": ") else content
    assert evaluation.answer.text.startswith(content)
    assert evaluation.as_tool_result() == answered_as(form, tool, whole, result, is_error=result is None)
    # The id of a JSON-RPC request is its sender's.
    call_id = "1" if form is CallForm.MCP else "c1"
    assert evaluation.trace.tool_call_id == call_id
    assert {event["tool_call_id"] for event in audit.events} == {call_id}


def test_a_call_of_a_session_that_cannot_be_read_is_answered(pep: Pep) -> None:
    evaluation = pep.call(made_as(CallForm.ANTHROPIC, "plan_trip", TEXT), {"claims": []})

    assert evaluation.codes == ("decision.request_invalid",)
    assert evaluation.as_tool_result()["tool_use_id"] == "c1"


def test_the_applications_own_id_is_what_is_recorded(pep: Pep) -> None:
    evaluation = pep.call(made_as(CallForm.OPENAI, "plan_trip", TEXT), SESSION, tool_call_id="mine")

    assert evaluation.trace.tool_call_id == "mine"
    assert evaluation.as_tool_result()["tool_call_id"] == "c1"


def test_a_result_may_go_back_in_a_form_that_is_named(pep: Pep) -> None:
    evaluation = pep.call({"tool": "plan_trip", "arguments": ARGUMENTS}, SESSION, tool_call_id="c1")
    content, result = '{"city":"Turin","nights":1}', {"city": "Turin", "nights": 1}

    for form in CallForm:
        answer = answered_as(form, "plan_trip", content, result, is_error=False)
        assert evaluation.as_tool_result(form.value) == answer


@pytest.mark.parametrize(
    ("form", "made", "fault"),
    [
        (None, True, "the proposal is not a call in a form of a model's API (pass one of openai, openai-responses, "),
        ("grok", True, "'grok' is not a form of a model's API (pass one of openai, openai-responses, "),
        ("openai", False, "the call was decided and not made: it has no result (use `Pep.call`)"),
    ],
)
def test_what_has_no_result_in_a_form_says_so(pep: Pep, form: str | None, made: bool, fault: str) -> None:
    ask = pep.call if made else pep.decide
    evaluation = ask({"tool": "plan_trip", "arguments": ARGUMENTS}, SESSION)

    with pytest.raises(UsageError) as caught:
        evaluation.as_tool_result(form)
    assert str(caught.value).startswith(fault)
