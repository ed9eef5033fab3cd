"""Values of sensitive arguments never appear in reasons, error messages, logs, events or spans."""

import logging
from typing import Any

import pytest

from pdp import Pep, Registry, Session, ToolContract, ToolDeniedError
from pdp.contract.invariants import ToolInvariant
from pdp.contract.sensitive import MASK, Mask
from pdp.decision import Decision
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.execution.events import ToolEvent
from pdp.manifest.load import load_effective

ACCOUNT = "acct-operating-4412-0815"
LONG = "4412 0815 " * 40

MANIFEST = """
manifest_version: "1"
tools:
  - name: read_account
    effect_class: read-internal
    risk_tier: low
    scopes: [desk]
    sensitive: [account, nested]
    resource: {type: account, id: $arguments.nested.id}
    context: {first: '$arguments.account.startsWith("x") ? 1 / (size(arguments.account) - size(arguments.account)) : 1'}
    schema:
      type: object
      properties:
        account: {type: string, maxLength: 30, pattern: "^[a-z0-9 -]*$"}
        nested: {type: object, properties: {id: {type: [string, "null", number]}}, maxProperties: 1}
        other: {type: string}
      anyOf: [{required: [account]}, {required: [nested]}]
    invariants:
      - id: SHORT
        rule: an account is short
        check: "!has(call.account) || !call.account.startsWith('too')"
        correct: {set: {account: "A corrected account, which the schema refuses"}}
"""


@pytest.fixture(scope="module")
def pep(tmp_path_factory: pytest.TempPathFactory) -> Pep:
    file = tmp_path_factory.mktemp("sensitive") / "manifest.yaml"
    file.write_text(MANIFEST)
    manifest = load_effective(file)
    return Pep(manifest, EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}))


SESSION = Session(claims={"sub": "clerk-1", "emts": {"desk": True}})


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        pytest.param({"account": ACCOUNT.upper()}, [ACCOUNT.upper()], id="a pattern"),
        pytest.param({"account": LONG}, [LONG[:8], LONG[-8:]], id="too long, and so quoted in part"),
        pytest.param({"account": [ACCOUNT]}, [ACCOUNT], id="another type"),
        pytest.param({"account": {ACCOUNT: 1}}, [ACCOUNT], id="a key"),
        pytest.param({"account": 4412081547}, ["4412081547"], id="a number"),
        pytest.param({"nested": {"id": ACCOUNT, "more": ACCOUNT}}, [ACCOUNT], id="nested"),
        pytest.param({"nested": {"id": 44120815}}, ["44120815"], id="the resource"),
        pytest.param(
            {"account": ACCOUNT.upper(), "other": ACCOUNT.upper()[:20]}, [ACCOUNT[:20].upper()], id="elsewhere"
        ),
        pytest.param({"account": f"too {ACCOUNT}"}, [ACCOUNT, "corrected account"], id="a rejected correction"),
        pytest.param({"account": f"x {ACCOUNT}", "nested": {"id": "a"}}, [ACCOUNT], id="an expression that fails"),
    ],
)
def test_rejection_messages_do_not_quote_sensitive_values(
    pep: Pep, arguments: dict[str, Any], secrets: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    evaluation = pep.call({"tool": "read_account", "arguments": arguments}, SESSION)
    plan = pep.plan([{"tool": "read_account", "arguments": arguments}], SESSION)

    rejection = evaluation.outcome.rejection
    assert rejection is not None
    shown = "\n".join([
        rejection.reason, str(ToolDeniedError(evaluation)), caplog.text, str(evaluation.as_json()),
        *plan.checked.explained(),
    ])  # fmt: skip
    assert [secret for secret in secrets if secret in shown] == []


def fails(*_: Any) -> bool:
    raise ValueError(f"no account {ACCOUNT}")


def test_log_does_not_quote_errors_of_invariant_functions(caplog: pytest.LogCaptureFixture) -> None:
    rule = ToolInvariant(id="RAISES", rule="it raises", check=fails)
    contract = ToolContract(
        name="read_account", description="Read.", schema={"account": "str — which"}, invariants=[rule]
    )
    registry = Registry()
    registry.register_contract(contract, lambda account: account, effect_class="read-internal", scopes=["desk"])

    reason = (
        Pep.from_registry(registry)
        .call({"tool": "read_account", "arguments": {"account": ACCOUNT}}, SESSION)
        .outcome.rejection
    )

    assert reason is not None
    assert reason.reason == "RAISES: the invariant's check raised ValueError"
    assert "the check of invariant RAISES raised ValueError" in caplog.text
    assert ACCOUNT not in caplog.text


class BrokenEngine(EmbeddedEngine):
    """An engine whose error message contains the whole request."""

    def __init__(self) -> None:
        """Do not load a policy, because this engine never decides."""

    def decide_body(self, body: bytes, document: str = "") -> Decision:
        raise RuntimeError(body.decode())


def test_log_does_not_quote_engine_errors(pep: Pep, caplog: pytest.LogCaptureFixture) -> None:
    evaluation = Pep(pep.manifest, BrokenEngine()).call(
        {"tool": "read_account", "arguments": {"account": ACCOUNT, "nested": {"id": "a"}}}, SESSION
    )

    assert evaluation.codes == ("pep.internal_error",)
    assert "the decision failed, so the call is denied: RuntimeError" in caplog.text
    assert ACCOUNT not in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no acct-operating-4412-0815", f"no {MASK}"),
        ("no acct-operating-44... in ating-4412-0815", f"no {MASK}... in {MASK}"),
        ("acct-operating-4412/acct-operating", f"{MASK}/{MASK}"),
        ("an acct-op is too short to say anything", "an acct-op is too short to say anything"),
        ("", ""),
    ],
)
def test_mask_hides_every_part_of_eight_characters_of_a_sensitive_value(text: str, shown: str) -> None:
    assert Mask(["account"], {"account": ACCOUNT}).text(text) == shown


@pytest.mark.parametrize(
    "value",
    [
        "x" * 32_000,
        "\U00020000" * 8_000,
        "line\n" * 800,
        ["x"] * 800,
        list(range(801)),
        {str(number) * 40: 1 for number in range(400)},
    ],
    ids=["long", "long as UTF-8", "lines", "texts", "numbers", "members"],
)
def test_mask_hides_the_whole_text_if_the_sensitive_values_are_too_large_to_search(value: Any) -> None:
    assert Mask(["a"], {"a": value}).text("a text") == MASK


def test_mask_hides_values_of_proposed_and_corrected_arguments() -> None:
    assert Mask(["a"], {"a": "proposed"}, {"a": "corrected"}).text("proposed, corrected") == f"{MASK}, {MASK}"


def test_audit_events_do_not_contain_sensitive_values(pep: Pep) -> None:
    events: list[ToolEvent] = []
    observed = Pep(pep.manifest, pep.engine, tools={"read_account": lambda **_: 1}, observers=[events.append])

    observed.call({"tool": "read_account", "arguments": {"account": ACCOUNT, "nested": {"id": ACCOUNT}}}, SESSION)

    assert [event.action for event in events] == ["execute_start", "execute_end"]
    assert ACCOUNT not in str(events)
