"""The checks of a proposal before the policy, and the request that the policy gets, each with a minimal manifest."""

from typing import Any

import orjson
import pytest

from pdp.contract.checks import Checked, Rejected
from pdp.contract.compiled import CompiledManifest
from pdp.contract.invariants import Resolution, Trip
from pdp.contract.request import MappingError, build_request, call_digest, check
from pdp.manifest.effective import effective_manifest
from pdp.manifest.expressions.path import ExpressionError
from pdp.manifest.fields import EffectClass
from pdp.manifest.load import load_manifest
from pdp.obligations.handlers import transformed
from pdp.proposal import Outcome, Proposal, Status
from pdp.request import Request
from pdp.session import Session
from tests.support.payments import session

TEXT = {"type": "string"}
SOURCES = {"type": ["array", "string", "number", "object", "null"], "items": TEXT, "additionalProperties": TEXT}


def compiled(**entry: Any) -> CompiledManifest:
    tool = {
        "name": "save_note", "description": "Save a note", "version": "1.0.0", "risk_tier": "low",
        "scopes": ["notes.write"],
        "schema": {
            "type": "object",
            "properties": {
                "text": TEXT,
                "count": {"type": "integer"},
                "source_ids": {"anyOf": [SOURCES, {"const": False}]},
                "tags": {"type": "object", "properties": {"a": TEXT}},
            },
        },
    }  # fmt: skip
    text = orjson.dumps({"manifest_version": "1", "tools": [{**tool, **entry}]})
    return CompiledManifest(effective_manifest(load_manifest("manifest.json", manifest_text=text)))


def checked(manifest: CompiledManifest, arguments: Any, **changes: Any) -> Checked:
    result = check(Proposal.read({"tool": "save_note", "arguments": arguments}), session(**changes), manifest)
    assert isinstance(result, Checked)
    return result


def rejection(manifest: CompiledManifest, arguments: Any, **changes: Any) -> tuple[str, str]:
    result = check(Proposal.read({"tool": "save_note", "arguments": arguments}), session(**changes), manifest)
    assert isinstance(result, Rejected)
    assert result.rejection is not None
    return result.rejection.code.value, result.rejection.reason


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param({"text": 1}, 'arguments.text: 1 is not of type "string"', id="type"),
        pytest.param({"count": 1.5}, 'arguments.count: 1.5 is not of type "integer"', id="not an integer"),
        pytest.param({"count": "1"}, 'arguments.count: "1" is not of type "integer"', id="text of digits"),
        pytest.param({"count": True}, 'arguments.count: true is not of type "integer"', id="true"),
        pytest.param({"tags": {"b": "x"}}, "arguments.tags: Additional properties are not allowed ('b' was unexpected)",
            id="unknown, nested"),
        pytest.param(
            {"text": 1, "count": "x", "__proto__": {}},
            'arguments.count: "x" is not of type "integer"; arguments.text: 1 is not of type "string"; '
            "arguments: Additional properties are not allowed ('__proto__' was unexpected)",
            id="every fault, in one order",
        ),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected_with_every_fault(arguments: Any, reason: str) -> None:
    assert rejection(compiled(), arguments) == ("INVALID_PAYLOAD", reason)


def test_rejection_reason_truncates_a_long_argument() -> None:
    code, reason = rejection(compiled(), {"count": "x" * 200_000})

    assert (code, len(reason)) == ("INVALID_PAYLOAD", 317)
    assert reason.endswith('x" is not of type "integer"')


@pytest.mark.parametrize(
    ("stated", "bound"), [({}, 256 * 1024), ({"max_bytes": 20}, 20), ({"max_bytes": 2**20}, 2**20)]
)
def test_arguments_larger_than_max_bytes_are_rejected(stated: dict[str, int], bound: int) -> None:
    manifest, fitting = compiled(**stated), bound - len('{"text":""}')

    # A proposal of more than 2**20 bytes is rejected before it is parsed, so no proposal can exceed this limit.
    if bound < 2**20:
        reason = f"arguments have {bound + 1} bytes, but at most {bound} are allowed"
        assert rejection(manifest, {"text": "x" * (fitting + 1)}) == ("INVALID_PAYLOAD", reason)
    checked(manifest, {"text": "x" * (fitting if bound < 2**20 else 10**6)})


def test_arguments_that_take_too_many_steps_to_validate_are_rejected() -> None:
    tags = {"type": "array", "items": {"anyOf": [{"type": "string", "minLength": at} for at in range(64)]}}
    manifest = compiled(schema={"type": "object", "properties": {"tags": tags}})

    code, reason = rejection(manifest, {"tags": ["a" * 60] * 4_000})

    assert code == "INVALID_PAYLOAD"
    assert reason.startswith("arguments: too expensive to validate: it may take ")
    assert checked(manifest, {"tags": ["a" * 60] * 500}).schema_valid is True


def test_call_is_rejected_if_its_correction_exceeds_max_bytes() -> None:
    long = {"set": {"text": "x" * 30}}
    invariant = {"id": "NONE", "rule": "No note is empty", "check": 'call.text != ""', "correct": long}
    manifest = compiled(max_bytes=20, invariants=[invariant])

    reason = (
        "NONE: the corrected arguments do not match the schema: arguments have 41 bytes, but at most 20 are allowed"
    )
    assert rejection(manifest, {"text": ""}) == ("INVALID_PAYLOAD", reason)


def test_float_without_fraction_is_valid_as_an_integer_argument() -> None:
    assert checked(compiled(), {"count": 2.0}).schema_valid is True


INVARIANT = {"id": "SHORT", "rule": "A note has at most five characters", "check": "size(call.text) <= 5"}


def test_invariants_can_read_state_config_and_plan() -> None:
    manifest = compiled(invariants=[{**INVARIANT, "check": "state.a == 1 && config.b == 2 && size(plan) == 2"}])

    assert checked(manifest, {}, state={"a": 1}, config={"b": 2}, plan=[{}]).schema_valid is True
    assert rejection(manifest, {}, state={"a": 2}, config={"b": 2}, plan=[{}])[0] == "INVALID_PAYLOAD"


MENDED = {**INVARIANT, "correct": {"set": {"text": "short"}}}


def test_corrected_proposal_replaces_the_original() -> None:
    derived = {"required": True, "key": "derive(args)"}
    manifest = compiled(invariants=[MENDED], idempotency=derived, provenance={"required": ["text"]})
    corrected = checked(manifest, {"text": "longer", "count": 1}, idempotency_key=None)
    as_is = checked(manifest, {"text": "short", "count": 1}, idempotency_key=None)

    assert corrected.proposal == as_is.proposal == Proposal("save_note", {"text": "short", "count": 1})
    assert corrected.proposal is not None
    assert corrected.proposal.text == b'{"count":1,"text":"short"}'
    assert corrected.idempotency_key == as_is.idempotency_key
    assert corrected.trips == (Trip("SHORT", INVARIANT["rule"], Resolution.CORRECTED, ("text",)),)
    assert as_is.trips == ()


@pytest.mark.parametrize("names", [("tool", "arguments"), ("tool_name", "payload")])
def test_corrected_proposal_uses_the_field_names_of_the_original_proposal(names: tuple[str, str]) -> None:
    proposal = Proposal.read(dict(zip(names, ("save_note", {"text": "longer"}), strict=True)))
    corrected = check(proposal, session(), compiled(invariants=[MENDED])).proposal
    assert corrected is not None
    replaced = Proposal.read(transformed(corrected, {"tool": "keep_note", "set": {"count": 1}}))

    spelled = [Outcome(Status.ACCEPTED, each).as_json()["proposal"] for each in (proposal, corrected, replaced)]
    assert spelled == [
        dict(zip(names, parts, strict=True))
        for parts in (
            ("save_note", {"text": "longer"}), ("save_note", {"text": "short"}),
            ("keep_note", {"text": "short", "count": 1}),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "arguments", "name", "trips"),
    [
        ({}, {"text": 1}, "schema", []),
        ({"invariants": [INVARIANT], "idempotency": {"required": True}}, {"text": "longer"}, "invariants",
         ["SHORT: A note has at most five characters (rejected)"]),
        ({"invariants": [{**INVARIANT, "correct": "prune"}]}, {"text": "longer"}, "invariants",
         ["SHORT: A note has at most five characters (pruned)"]),
        ({"idempotency": {"required": True}, "provenance": {"required": ["text"]}}, {}, "idempotency", []),
        ({"provenance": {"required": ["text"]}}, {}, "provenance", []),
    ],
)  # fmt: skip
def test_rejection_names_the_failed_check_and_violated_rules(
    entry: Any, arguments: Any, name: str, trips: list[str]
) -> None:
    proposal = Proposal.read({"tool": "save_note", "arguments": arguments})
    result = check(proposal, session(idempotency_key=None), compiled(**entry))

    assert isinstance(result, Rejected)
    assert (result.check, [str(trip) for trip in result.trips]) == (name, trips)
    assert (result.rejection is None) == ("pruned" in str(trips))


@pytest.mark.parametrize(("invariant", "resolution"), [(MENDED, "corrected"), (INVARIANT, "rejected")])
def test_invariant_violations_are_logged_with_rule_id_and_without_arguments(
    invariant: dict[str, Any], resolution: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pdp.contract")
    proposal = Proposal.read({"tool": "save_note", "arguments": {"text": "secret-secret"}})
    check(proposal, session(), compiled(invariants=[invariant]))

    assert [record.getMessage() for record in caplog.records] == [f"save_note: violated invariant SHORT: {resolution}"]


def test_config_is_resolved_before_invariants_are_checked() -> None:
    config = [{"key": "most", "default": 3}, {"key": "mode", "default": "FAST", "normalize": ["lower"]}]
    check_text = 'size(call.text) <= int(config.most) && config.mode == "fast"'
    manifest = compiled(config=config, invariants=[{**INVARIANT, "check": check_text}])

    assert rejection(manifest, {"text": "four"})[0] == "INVALID_PAYLOAD"
    found = checked(manifest, {"text": "four"}, config={"most": 4}, state={"mode": " FAST".strip()})
    assert dict(found.config or {}) == {"most": 4, "mode": "fast"}


DERIVED = {"idempotency": {"required": True, "key": "derive(args)"}}


def test_missing_idempotency_key_is_derived_from_the_arguments() -> None:
    manifest = compiled(**DERIVED)
    first, again = (checked(manifest, {"text": "a", "count": 1}, idempotency_key=None) for _ in range(2))
    other = checked(manifest, {"text": "b", "count": 1}, idempotency_key=None)

    assert first.idempotency_key is not None
    assert first.idempotency_key.startswith("derived:sha256:")
    assert first.idempotency_key == again.idempotency_key != other.idempotency_key
    assert (first.idempotency_missing, checked(manifest, {}).idempotency_key) == (False, "idm-4a2b")


def test_idempotency_key_is_not_derived_for_commit_high_tools() -> None:
    """The loader rejects this entry in a manifest file, so the test creates the entry without the loader."""
    tool = compiled(**DERIVED, effect_class="commit-low", compensation="save_note").manifest.tools["save_note"]

    assert tool.derives_key is True
    assert tool.model_copy(update={"effect_class": EffectClass.COMMIT_HIGH}).derives_key is False


@pytest.mark.parametrize("arguments", [{"text": "a"}, {"text": 1}, {}])
@pytest.mark.parametrize(
    "entry",
    [{}, {"effect_class": "pure"}, {**DERIVED, "provenance": {"required": ["source_ids"]}}],
    ids=["no class", "pure", "no key and no sources"],
)
def test_calls_of_a_tool_that_writes_canonical_memory_are_rejected(
    entry: dict[str, Any], arguments: dict[str, Any]
) -> None:
    manifest = compiled(**entry, writes="canonical", invariants=[MENDED])
    assert rejection(manifest, arguments, idempotency_key=None) == (
        "DIRECT_CANONICAL_WRITE_FORBIDDEN",
        "save_note writes canonical memory, so no model may call it: propose the change instead",
    )


@pytest.mark.parametrize("required", [[], ["source_ids"]])
@pytest.mark.parametrize("sources", ["absent", None, "", [], {}, False])
def test_call_without_a_required_source_argument_is_rejected(sources: Any, required: list[str]) -> None:
    arguments = {} if sources == "absent" else {"source_ids": sources}
    schema = {**compiled().manifest.tools["save_note"].schema_, "required": required}

    assert rejection(compiled(provenance={"required": ["source_ids"]}, schema=schema), arguments) == (
        "MISSING_PROVENANCE", "save_note has to name its sources: source_ids",
    )  # fmt: skip
    for named in ("doc-7", ["doc-7"], 0):
        assert checked(compiled(provenance={"required": ["source_ids"]}), {"source_ids": named}).schema_valid is True


@pytest.mark.parametrize("sources", [None, [], "", [None], ["doc-7", None], [""]])
def test_empty_source_argument_counts_as_missing_provenance_even_if_the_schema_rejects_it(sources: Any) -> None:
    strict = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
    schema = {"type": "object", "properties": {"source_ids": strict, "count": {"type": "integer"}}}
    manifest = compiled(provenance={"required": ["source_ids"]}, schema=schema)

    assert rejection(manifest, {"source_ids": sources})[0] == "MISSING_PROVENANCE"
    assert rejection(manifest, {"source_ids": sources, "count": "x"})[0] == "INVALID_PAYLOAD"
    assert rejection(manifest, {"source_ids": [7]})[0] == "INVALID_PAYLOAD"


def test_empty_source_argument_is_rejected_before_other_contract_checks_run() -> None:
    strict = {"type": "array", "items": {"type": "string", "minLength": 1}}
    few = {"id": "FEW", "rule": "few sources", "check": "size(call.source_ids) <= 3"}
    sourced = {"provenance": {"required": ["source_ids"]}, "idempotency": {"required": True}}
    schema = {"type": "object", "properties": {"source_ids": strict}}
    manifest = compiled(**sourced, schema=schema, invariants=[few])
    for sources in (None, [""]):
        found = check(
            Proposal.read({"tool": "save_note", "arguments": {"source_ids": sources}}),
            session(idempotency_key=None),
            manifest,
        )
        assert isinstance(found, Rejected)
        assert found.rejection is not None
        assert (found.check, found.rejection.code) == ("provenance", "MISSING_PROVENANCE")
        assert (found.schema_valid, found.idempotency_missing, found.trips) == (False, None, ())
    # An empty list matches the schema, so the checks run in their normal order, and the first fault is the missing key.
    found = check(
        Proposal.read({"tool": "save_note", "arguments": {"source_ids": []}}), session(idempotency_key=None), manifest
    )
    assert isinstance(found, Rejected)
    assert (found.check, found.schema_valid) == ("idempotency", True)


def built(manifest: CompiledManifest, arguments: Any, who: Session, **more: Any) -> Request:
    passed = check(Proposal.read({"tool": "save_note", "arguments": arguments}), who, manifest)
    assert isinstance(passed, Checked)
    return build_request(passed, who, request_id=more.get("request_id", "req-1"), now=0.0)


def test_resource_of_a_call_is_the_tool_if_the_manifest_entry_has_no_resource_mapping() -> None:
    request = built(compiled(), {"text": "a"}, session(time=None))

    assert request.as_json()["resource"] == {"type": "tool", "id": "save_note", "properties": {}}
    assert request.context["time"] == "1970-01-01T00:00:00Z"


MAPPED = {
    "resource": {"type": "note", "id": "$session.facts.note_id", "markings": "$session.facts.markings"},
    "context": {"length": "$size(arguments.text)", "literal": "$$5", "gone": "$arguments.count"},
}


def test_manifest_mappings_leave_missing_values_out_of_resource_and_context() -> None:
    request = built(compiled(**MAPPED), {"text": "abc"}, session(facts={"note_id": "n-1", "markings": ["pii"]}))

    assert request.as_json()["resource"] == {"type": "note", "id": "n-1", "properties": {"markings": ["pii"]}}
    assert {name: request.context[name] for name in ("length", "literal")} == {"length": 3, "literal": "$5"}
    assert "gone" not in request.context


def test_resource_id_defaults_to_the_tool_name() -> None:
    """The mapping `{type, beneficiary_id}` is the worked example of the tool registry document."""
    manifest = compiled(resource={"type": "wire_payment", "beneficiary_id": "$arguments.text"})

    assert built(manifest, {"text": "bene-1"}, session()).as_json()["resource"] == {
        "type": "wire_payment", "id": "save_note", "properties": {"beneficiary_id": "bene-1"},
    }  # fmt: skip


@pytest.mark.parametrize("note_id", ["absent", None, "", 7, ["n-1"]])
def test_resource_id_that_is_not_a_text_is_an_error(note_id: Any) -> None:
    facts = {} if note_id == "absent" else {"note_id": note_id}

    with pytest.raises(MappingError, match=r"^save_note: resource\.id must be a non-empty string"):
        built(compiled(**MAPPED), {"text": "abc"}, session(facts=facts))


def test_mapping_expression_that_fails_is_an_error() -> None:
    with pytest.raises(ExpressionError):
        built(compiled(context={"x": "$arguments.count / 0"}), {"count": 1}, session())


def test_call_digest_ignores_only_time_and_request_id() -> None:
    manifest = compiled(context={"status": "$session.facts.status"})

    def digest(text: str = "a", request_id: str = "req-1", **changes: Any) -> str:
        request = built(manifest, {"text": text}, session(**changes), request_id=request_id)
        assert request.context["call_digest"] == call_digest(request)
        return str(request.context["call_digest"])

    same = {digest(), digest(request_id="req-2"), digest(time="2027-01-01T00:00:00Z")}
    others = {
        digest("b"), digest(claims={"sub": "another"}), digest(purpose="p"), digest(facts={"status": "x"}),
        digest(agent="agent:a"), digest(run_id="run-2"),
    }  # fmt: skip
    assert (len(same), len(others), same & others) == (1, 6, set())


MEMBER = {"type": ["number", "string", "array"], "items": {"type": ["number", "null"]}}
FREE = {"type": ["number", "string", "object"], "additionalProperties": MEMBER}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(25000.0, id="an integral float"),
        pytest.param(0.0000012, id="a number with an exponent"),
        pytest.param({"\uffff": 1, "\U0001f600": 2}, id="keys that UTF-16 sorts otherwise"),
        pytest.param({"zoe": [1.5, None], "ann": "1.0,"}, id="an object"),
        pytest.param("e-6", id="a text"),
    ],
)
@pytest.mark.parametrize("of", ["claims", "facts", "resource", "arguments"])
def test_call_digest_uses_the_canonical_json_of_the_request(of: str, value: Any) -> None:
    manifest = compiled(
        context={"fact": "$session.facts.fact"},
        resource={"type": "note", "id": "n-1", "part": "$session.facts.part"},
        schema={"type": "object", "properties": {"free": FREE}},
    )
    who = session(
        claims={"sub": "ann", "limits": value if of == "claims" else {}},
        facts={"fact": value if of == "facts" else 1, "part": value if of == "resource" else 1},
    )
    request = built(manifest, {"free": value if of == "arguments" else 1}, who)

    assert request.context["call_digest"] == call_digest(request)
