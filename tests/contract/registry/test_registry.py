"""The registry: tools of files and of Python side by side, their functions, what a model is told, the state."""

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


def one(**fields: Any) -> Registry:
    """A registry of the one contract `search_web`."""
    registry = Registry()
    registry.register_contract(contract(**fields), **READS)
    return registry


def test_files_alone_give_the_manifest_that_loading_gives() -> None:
    files = EXAMPLE / "manifest.json", EXAMPLE / "governance.yaml"

    assert Registry.from_files(files[0], governance=files[1]).manifest == load_effective(*files)


def test_files_and_contracts_stand_side_by_side() -> None:
    registry = Registry.from_files(EXAMPLE / "manifest.json", version="7")
    registry.register_contract(contract(), **READS)
    entry = registry.manifest.tools["search_web"]

    assert registry.manifest.version == "7"
    assert [status.name for status in registry.check_availability()] == [
        "initiate_wire", "lookup_beneficiary", "search_web", "validate_payment",
    ]  # fmt: skip
    assert (entry.effect_class, entry.scopes, entry.action) == ("read-internal", ("search",), "search_web")


def test_the_governance_file_governs_a_contract_too() -> None:
    rules = Governance.model_validate({"actions": {"search_web": {"scopes": ["a"], "idempotency": {}}}})
    registry = Registry(governance=rules)
    registry.register_contract(contract(), scopes=["b"], risk_tier="high")

    assert registry.manifest.tools["search_web"].scopes == ("a", "b")


NO_SCOPE = (
    "contract `search_web`: every call is a DENY (decision.nothing_allows), as no scope is stated: state `scopes` and "
    "`effect_class` with `register_contract`, or for action `search_web` in the governance file"
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
def test_a_contract_that_no_policy_can_allow_says_so_when_it_is_registered(
    fields: dict[str, Any], rules: dict[str, Any], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(governance=Governance.model_validate({"actions": rules}))
    registry.register_contract(contract(), **fields)
    session = {"claims": {"sub": "ann", "scope": "search"}}
    with EmbeddedEngine.baseline(manifests={registry.manifest.digest: registry.manifest.document}) as engine:
        evaluation = Pep(registry.manifest, engine).decide({"tool": "search_web", "arguments": {"query": "x"}}, session)

    assert caplog.messages == warnings
    assert ("decision.nothing_allows" in evaluation.codes) == bool(warnings)


def test_the_record_becomes_the_entry() -> None:
    registry = one(
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
def test_a_rule_that_the_description_contains_is_not_repeated(description: str, shown: str) -> None:
    rules = [ToolInvariant(f"R{at}", rule, lambda *_: True) for at, rule in enumerate(["Ask in English", "Ask once"])]
    registry = one(description=description, invariants=rules)

    assert registry.all_definitions("anthropic")[0]["description"] == shown
    assert registry.check_availability()[0].description == shown


def test_the_digest_covers_what_a_contract_says() -> None:
    def digest(**fields: Any) -> str:
        return one(**fields).manifest.digest

    rule = ToolInvariant("R", "A rule", lambda *_: True)
    others = [
        digest(description="Search."), digest(invariants=[rule]), digest(config_params=[ToolConfigParam("k", 1)]),
        digest(state_reads=[ToolStateRead("k")]), digest(schema={"query": "Optional[str]"}),
    ]  # fmt: skip

    assert digest() == digest()
    assert len({digest(), *others}) == 6


def bound() -> Registry:
    registry = one()
    registry.bind("search_web", lambda query: query)
    return registry


def in_use() -> Registry:
    registry = one()
    assert registry.manifest.tools.keys() == {"search_web"}
    return registry


def manifest(*names: str) -> Manifest:
    tools = [{"name": name, "schema": {"type": "object"}} for name in names]
    return Manifest.model_validate({"manifest_version": "1", "tools": tools})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Registry(manifest("search_web", "search_web")),
         "tool search_web is declared twice (names are unique: rename or remove one)"),
        (lambda: Registry(manifest("search_web")).register_contract(contract()),
         "tool search_web is declared twice (names are unique: rename or remove one)"),
        (lambda: one().bind("serch_web", print),
         "`serch_web` is not a tool of this registry (did you mean `search_web`?)"),
        (lambda: Registry().bind("x", print),
         "`x` is not a tool of this registry (add it to a manifest, or register its contract)"),
        (
            lambda: one().bind("search_web", "text"),  # type: ignore[arg-type]
            "the function of search_web cannot be called (bind a function)",
        ),
        *[
            (
                lambda method=method: getattr(one(), method)("foo"),
                "`foo` is not a format of a tool list (known: plain, openai, anthropic, mcp)",
            )
            for method in ("definitions", "all_definitions")
        ],
        (lambda: bound().bind("search_web", print),
         "search_web has a function already (one function for a tool; remove one)"),
        (
            lambda: in_use().register_contract(contract("other_tool")),
            ("contract `other_tool` comes after the manifest was made "
            "(register every contract before the registry is used)"),
        ),
        (lambda: Registry().register_contract(contract(), invariants=[]),
         "contract `search_web`: `invariants` is the contract's own (state it in the contract)"),
        (
            lambda: Registry().register_contract(
                contract(invariants=[ToolInvariant("R", "r", lambda *_: True, print, corrects=["text"])])
            ),
            "contract `search_web`: invariant `R` corrects `text`, which is not an argument of the schema",
        ),
        (
            lambda: Registry().register_contract(contract(), risk_tier="high", idempotency={"required": False},
                                                 effect_class="commit-low", compensation="undo_it"),
            ("contract `search_web`: high risk tier without idempotency (write `idempotency: {required: true}`; or "
            "declare an effect class without side effects)\n"
            "contract `search_web`: argument `query` is the only one of a tool with effects, and any text "
            "(not_a_tool.free_text) (state further arguments, `enum`, `pattern`, `format`, or a `maxLength` of at most "
            "200)"),
        ),
        (
            lambda: Registry().register_contract(contract(), scopes={"a"}),
            ("contract `search_web`: value: Type is not JSON serializable: set "
            "(a contract's schema and fields are plain JSON)"),
        ),
        (
            lambda: one(config_params=[ToolConfigParam("mode", float("nan"))]),
            ("contract `search_web`: config[0]: nan is not a number of JSON (a contract's schema and fields are plain "
            "JSON)"),
        ),
        (
            lambda: one(state_effects=[ToolStateEffect("notes", tuple, "add")]),
            ("contract `search_web`: `state.effects[0].merge` must be one of replace, append, merge_dict, not `add`\n"
            "contract `search_web`: `state.effects[0].type` must be one of object, array, string, number, integer, "
            "boolean, not `tuple`"),
        ),
        (lambda: one(config_params=[ToolConfigParam("mode"), ToolConfigParam("mode")]),
         "contract `search_web`: config parameter `mode` is stated twice, first as number 1 (rename or remove one)"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()

    assert str(caught.value) == message


def test_dispatch_is_by_name_and_does_not_ask_for_availability() -> None:
    registry = one()
    tools = Tools(registry.manifest, {}, registry)
    assert registry.function("search_web") is None
    assert [name in tools for name in ("search_web", "absent_tool")] == [False, False]

    def search_web(query: str) -> str:
        return query

    assert registry.bind("search_web", search_web, available=lambda: False) is search_web
    assert registry.function("search_web") is search_web
    assert [name in tools for name in ("search_web", "absent_tool")] == [True, False]


def test_a_model_is_told_of_what_is_available() -> None:
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
    assert [each["name"] for each in registry.all_definitions("mcp")] == ["other_tool", "search_web"]  # sorted
    assert list(registry.manifest.tools) == ["other_tool", "search_web"]
    up[0] = False
    assert registry.definitions() == []
    assert registry.check_availability() == (
        ToolStatus("other_tool", "python", "Search the web.", available=False, reason="no function is bound"),
        ToolStatus("search_web", "python", "Search the web.", available=False, reason="not available"),
    )


def test_a_function_gets_state_and_config_by_name() -> None:
    registry = one(
        config_params=[ToolConfigParam("mode", "fast"), ToolConfigParam("both")],
        state_reads=[ToolStateRead("language"), ToolStateRead("both")],
    )

    def search_web(query: str, mode: str, language: str, state: Any, config: Any, own: int = 1, **more: Any) -> None:
        """Takes whatever there is."""

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


def test_what_is_not_there_leaves_a_parameter_its_default() -> None:
    registry = one(state_reads=[ToolStateRead("language")])
    registry.bind("search_web", lambda query, language="en": query)

    assert registry.inputs("search_web", {}, {}) == {}
    assert registry.inputs("search_web", {"language": "tr"}, {}) == {"language": "tr"}
    assert one().inputs("search_web", {"language": "tr"}, {}) == {}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda query, langage: None,
            f"{FOR_TOOL} langage is not an argument, nor a key of its state or config (did you mean `language`?)",
        ),
        (
            lambda query, both: None,
            f"{FOR_TOOL} both is a key of its state and of its config (take `state` or `config` instead)",
        ),
    ],
)
def test_a_function_that_asks_for_what_nobody_gives(function: Any, message: str) -> None:
    registry = one(
        config_params=[ToolConfigParam("both")], state_reads=[ToolStateRead("language"), ToolStateRead("both")]
    )
    with pytest.raises(UsageError) as caught:
        registry.bind("search_web", function)

    assert (str(caught.value), registry.function("search_web")) == (message, None)
