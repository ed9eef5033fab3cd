"""The registry takes tools from files and Python contracts, binds functions to them, and describes them to a model."""

from typing import Any

import pytest

from pdp import EmbeddedEngine, Pep
from pdp.contract.invariants import ToolInvariant
from pdp.contract.registry.registry import Registry, ToolStatus
from pdp.contract.registry.tool_contract import (
    ToolConfigParam,
    ToolContract,
    ToolStateEffect,
    ToolStateRead,
)
from pdp.errors import UsageError
from pdp.flow.parts import Tools
from pdp.manifest.load import load_effective
from pdp.manifest.model import Governance, Manifest
from tests.support.payments import EXAMPLE


def contract(name: str = "search_web", **fields: Any) -> ToolContract:
    return ToolContract(
        **{
            "name": name,
            "schema": {"query": "str — what to look for"},
            "invariants": [],
            "description": "Search the web.",
            **fields,
        }
    )


FOR_TOOL = "the function for tool search_web:"
READS: dict[str, Any] = {"effect_class": "read-internal", "scopes": ["search"]}


def search_registry(**fields: Any) -> Registry:
    """Return a registry with only the contract `search_web`."""
    registry = Registry()
    registry.register_contract(contract(**fields), **READS)
    return registry


def test_registry_from_files_has_the_loaded_manifest() -> None:
    files = EXAMPLE / "manifest.json", EXAMPLE / "governance.yaml"

    assert Registry.from_files(files[0], governance=files[1]).manifest == load_effective(*files)


def test_registry_can_add_tool_contracts_to_a_loaded_manifest_file() -> None:
    registry = Registry.from_files(EXAMPLE / "manifest.json", version="7")
    registry.register_contract(contract(), **READS)
    entry = registry.manifest.tools["search_web"]

    assert registry.manifest.version == "7"
    assert [status.name for status in registry.check_availability()] == [
        "initiate_wire", "lookup_beneficiary", "search_web", "validate_payment",
    ]  # fmt: skip
    assert (entry.effect_class, entry.scopes, entry.action) == ("read-internal", ("search",), "search_web")


def test_governance_file_applies_to_registered_tool_contracts() -> None:
    rules = Governance.model_validate({"actions": {"search_web": {"scopes": ["a"], "idempotency": {}}}})
    registry = Registry(governance=rules)
    registry.register_contract(contract(), scopes=["b"], risk_tier="high")

    assert registry.manifest.tools["search_web"].scopes == ("a", "b")


NO_SCOPE = (
    "contract `search_web`: every call is denied (decision.nothing_allows) because it has no scopes: set `scopes` "
    "and `effect_class` in `register_contract`, or for action `search_web` in the governance file"
)


@pytest.mark.parametrize(
    ("fields", "rules", "warnings"),
    [
        ({}, {}, [NO_SCOPE]),
        ({"effect_class": "read-internal"}, {}, [NO_SCOPE]),
        ({"effect_class": "read-internal", "scopes": ["search"]}, {}, []),
        ({"effect_class": "pure"}, {}, []),
        ({}, {"search_web": {"scopes": ["search"]}}, []),
    ],
)
def test_registering_a_contract_without_scopes_logs_a_warning(
    fields: dict[str, Any], rules: dict[str, Any], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(governance=Governance.model_validate({"actions": rules}))
    registry.register_contract(contract(), **fields)
    session = {"claims": {"sub": "ann", "scope": "search"}}
    with EmbeddedEngine.baseline(manifests={registry.manifest.digest: registry.manifest.document}) as engine:
        evaluation = Pep(registry.manifest, engine).decide({"tool": "search_web", "arguments": {"query": "x"}}, session)

    assert caplog.messages == warnings
    assert ("decision.nothing_allows" in evaluation.codes) == bool(warnings)


def test_tool_contract_is_converted_to_a_manifest_entry() -> None:
    registry = search_registry(
        invariants=[ToolInvariant("R", "Ask for something", lambda call, state, config: call["query"] != "")],
        config_params=[ToolConfigParam("mode", "Fast", str.lower)],
        state_reads=[ToolStateRead("language")],
        state_effects=[ToolStateEffect("found", list, "append", prompt_template_var="FOUND")],
    )
    entry = registry.manifest.tools["search_web"].model_dump(mode="json", by_alias=True, exclude_none=True)

    assert {name: entry[name] for name in ("description", "schema", "invariants", "config", "state")} == {
        "description": "Search the web.\n- Ask for something",
        "schema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "what to look for"}},
            "required": ["query"],
            "additionalProperties": False,
        },
        "invariants": [],
        "config": [{"key": "mode", "default": "Fast", "normalize": []}],
        "state": {
            "reads": ["language"],
            "effects": [
                {"key": "found", "type": "array", "merge": "append", "preserve_across_turns": False,
                 "prompt_template_var": "FOUND"}
            ],
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("description", "shown"),
    [
        ("Search the web.\n- Ask in English", "Search the web.\n- Ask in English\n- Ask once"),
        ("Ask once. Ask in English.", "Ask once. Ask in English."),
    ],
)
def test_tool_description_for_the_model_does_not_repeat_a_rule(description: str, shown: str) -> None:
    rules = [ToolInvariant(f"R{at}", rule, lambda *_: True) for at, rule in enumerate(["Ask in English", "Ask once"])]
    registry = search_registry(description=description, invariants=rules)

    assert registry.all_definitions("anthropic")[0]["description"] == shown
    assert registry.check_availability()[0].description == shown


def test_manifest_digest_changes_with_each_contract_field() -> None:
    def digest(**fields: Any) -> str:
        return search_registry(**fields).manifest.digest

    rule = ToolInvariant("R", "A rule", lambda *_: True)
    others = [
        digest(description="Search."), digest(invariants=[rule]), digest(config_params=[ToolConfigParam("k", 1)]),
        digest(state_reads=[ToolStateRead("k")]), digest(schema={"query": "Optional[str]"}),
    ]  # fmt: skip

    assert digest() == digest()
    assert len({digest(), *others}) == 6


def bound() -> Registry:
    registry = search_registry()
    registry.bind("search_web", lambda query: query)
    return registry


def in_use() -> Registry:
    registry = search_registry()
    assert registry.manifest.tools.keys() == {"search_web"}
    return registry


def manifest(*names: str) -> Manifest:
    tools = [{"name": name, "schema": {"type": "object"}} for name in names]
    return Manifest.model_validate({"manifest_version": "1", "tools": tools})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Registry(manifest("search_web", "search_web")),
         "tool search_web is declared twice (rename or remove one of them)"),
        (lambda: Registry(manifest("search_web")).register_contract(contract()),
         "tool search_web is declared twice (rename or remove one of them)"),
        (lambda: search_registry().bind("serch_web", print),
         "`serch_web` is not a tool of this registry (did you mean `search_web`?)"),
        (lambda: Registry().bind("x", print),
         "`x` is not a tool of this registry (add it to a manifest, or register its contract)"),
        (
            lambda: search_registry().bind("search_web", "text"),  # type: ignore[arg-type]
            "the function of search_web is not callable (bind a function)",
        ),
        *[
            (
                lambda method=method: getattr(search_registry(), method)("foo"),
                "`foo` is not a tool list format (known: plain, openai, anthropic, mcp)",
            )
            for method in ("definitions", "all_definitions")
        ],
        (lambda: bound().bind("search_web", print),
         "search_web has a function already (bind one function to each tool)"),
        (
            lambda: in_use().register_contract(contract("other_tool")),
            ("contract `other_tool` cannot be added: the registry has already built its manifest "
            "(register every contract before the registry is used)"),
        ),
        (lambda: Registry().register_contract(contract(), invariants=[]),
         "contract `search_web`: `invariants` is a field of the contract itself (set this field in the contract)"),
        (
            lambda: Registry().register_contract(
                contract(invariants=[ToolInvariant("R", "r", lambda *_: True, print, corrects=["text"])])
            ),
            "contract `search_web`: invariant `R` corrects `text`, which is not an argument of the schema",
        ),
        (
            lambda: Registry().register_contract(contract(), risk_tier="high", idempotency={"required": False},
                                                 effect_class="commit-low", compensation="undo_it"),
            ("contract `search_web`: a tool with a high risk tier needs idempotency (write `idempotency: "
             "{required: true}`; or "
            "declare an effect class without side effects)\n"
            "contract `search_web`: the only argument `query` of a tool with effects may be any text "
            "(not_a_tool.free_text) (add arguments, or state `enum`, `pattern`, `format`, or a `maxLength` of at most "
            "200)"),
        ),
        (
            lambda: Registry().register_contract(contract(), scopes={"a"}),
            ("contract `search_web`: value: Type is not JSON serializable: set "
            "(use only plain JSON in a contract)"),
        ),
        (
            lambda: search_registry(config_params=[ToolConfigParam("mode", float("nan"))]),
            ("contract `search_web`: config[0]: nan is not a number of JSON (use only plain JSON in a contract)"),
        ),
        (
            lambda: search_registry(state_effects=[ToolStateEffect("notes", tuple, "add")]),
            ("contract `search_web`: `state.effects[0].merge` must be one of replace, append, merge_dict, not `add`\n"
            "contract `search_web`: `state.effects[0].type` must be one of object, array, string, number, integer, "
            "boolean, not `tuple`"),
        ),
        (lambda: search_registry(config_params=[ToolConfigParam("mode"), ToolConfigParam("mode")]),
         "contract `search_web`: config parameter `mode` is declared twice, first as number 1 (rename or remove one)"),
    ],
)  # fmt: skip
def test_registry_rejects_invalid_contracts_and_functions(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()

    assert str(caught.value) == message


def test_registry_finds_an_unavailable_tool_by_name() -> None:
    registry = search_registry()
    tools = Tools(registry.manifest, {}, registry)
    assert registry.function("search_web") is None
    assert [name in tools for name in ("search_web", "absent_tool")] == [False, False]

    def search_web(query: str) -> str:
        return query

    assert registry.bind("search_web", search_web, available=lambda: False) is search_web
    assert registry.function("search_web") is search_web
    assert [name in tools for name in ("search_web", "absent_tool")] == [True, False]


def test_model_sees_only_available_tools() -> None:
    up = [True]
    registry = Registry()
    registry.register_contract(contract("search_web"), lambda query: query, available=lambda: up[0], **READS)
    registry.register_contract(contract("other_tool"), **READS)
    shown = {
        "type": "function",
        "function": {
            "name": "search_web",
            "description": "Search the web.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "what to look for"}},
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }

    assert registry.definitions() == [shown]
    assert registry.definitions("plain") == [{"name": "search_web", "parameters": {"query": "string"}}]
    assert [each["name"] for each in registry.all_definitions("mcp")] == ["other_tool", "search_web"]
    assert list(registry.manifest.tools) == ["other_tool", "search_web"]
    up[0] = False
    assert registry.definitions() == []
    assert registry.check_availability() == (
        ToolStatus("other_tool", "python", "Search the web.", available=False, reason="no function is bound"),
        ToolStatus("search_web", "python", "Search the web.", available=False, reason="not available"),
    )


def test_tool_function_gets_state_and_config_by_parameter_name() -> None:
    registry = search_registry(
        config_params=[ToolConfigParam("mode", "fast"), ToolConfigParam("both")],
        state_reads=[ToolStateRead("language"), ToolStateRead("both")],
    )

    def search_web(query: str, mode: str, language: str, state: Any, config: Any, own: int = 1, **more: Any) -> None:
        """A function with every type of parameter."""

    registry.bind("search_web", search_web)
    tool = registry.compiled.tool("search_web")
    assert tool is not None
    assert tool.config is not None
    state = {"language": "tr", "both": 1, "not read": 2, "query": "never"}
    config = tool.config.resolve({"mode": "slow", "undeclared": 1}, state)

    assert registry.inputs("search_web", state, config) == {
        "mode": "slow",
        "language": "tr",
        "state": {"language": "tr", "both": 1},
        "config": {"mode": "slow", "both": 1},
    }
    assert registry.inputs("search_web", {}, {}) == {"mode": None, "language": None, "state": {}, "config": {}}


def test_parameter_keeps_its_default_if_the_state_key_is_missing() -> None:
    registry = search_registry(state_reads=[ToolStateRead("language")])
    registry.bind("search_web", lambda query, language="en": query)

    assert registry.inputs("search_web", {}, {}) == {}
    assert registry.inputs("search_web", {"language": "tr"}, {}) == {"language": "tr"}
    assert search_registry().inputs("search_web", {"language": "tr"}, {}) == {}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda query, langage: None,
            (
                f"{FOR_TOOL} langage is not an argument of the tool, nor a key of its state or config (did you mean "
                f"`language`?)"
            ),
        ),
        (
            lambda query, both: None,
            (
                f"{FOR_TOOL} both is both a key of the tool's state and a key of its config (read the value from "
                f"the parameter `state` or `config` instead)"
            ),
        ),
    ],
)
def test_registry_rejects_a_function_with_an_unknown_parameter(function: Any, message: str) -> None:
    registry = search_registry(
        config_params=[ToolConfigParam("both")], state_reads=[ToolStateRead("language"), ToolStateRead("both")]
    )
    with pytest.raises(UsageError) as caught:
        registry.bind("search_web", function)

    assert (str(caught.value), registry.function("search_web")) == (message, None)
