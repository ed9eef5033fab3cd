"""`pdp explain` shows a summary line, the checks, and the rules with the values that the rules read."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp import Pep
from pdp.contract.request import CHECKS
from pdp.workbench.explain.explain import explain, traced_data
from tests.ledger import assistant
from tests.support import ROOT
from tests.support.command_line import OPTIONS, Done, pdp, session_file, written
from tests.support.payments import EXAMPLE, REMEDY, effective, session, wire
from tests.support.scripted import Scripted, answer

SANCTIONS = EXAMPLE / "policies/custom/concerns/sanctions/sanctions.rego"


def found(file: Path, text: str) -> int:
    """Return the number of the only line in the file that equals this text. Indentation is ignored."""
    [line] = [number for number, line in enumerate(file.read_text().splitlines(), 1) if line.strip() == text]
    return line


def rule_line(file: Path, code: str) -> int:
    """Return the line number of the Rego rule whose METADATA comment has this code."""
    lines = file.read_text().splitlines()
    return next(
        number for number in range(found(file, f"#   code: {code}"), len(lines) + 1) if lines[number - 1][0] != "#"
    )


def concern(name: str) -> Path:
    return ROOT / f"policies/authz/concerns/{name}/{name}.rego"


EXCEEDED = (
    f"STEP_UP because limits.exceeded (limits.rego:{rule_line(concern('limits'), 'limits.exceeded')}): "
    "The amount is above what the subject may do without approval. "
    'Here, approval is {"approvers":["payments.approver"],"expires":"PT1H","expires_seconds":3600,"quorum":1,'
    '"unless_within_limits":true}, argument is "amount", held is 25000, limit is "wire.auto_approved", value is 47500. '
    f"{REMEDY}"
)


@pytest.fixture
def without_opa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PDP_OPA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def explained(proposal: object, *more: object, **files: object) -> Done:
    options = {**OPTIONS, **{f"-{name}": file for name, file in files.items()}}
    text = proposal if isinstance(proposal, bytes) else json.dumps(proposal).encode()
    return pdp("explain", "-", *(part for option in options.items() for part in option), *more, stdin=text)


def rule(done: Done, code: str) -> Any:
    return next(item for item in done.json["rules"] if item["code"] == code)


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_worked_example_with_a_custom_concern_is_explained(tmp_path: Path) -> None:
    done = explained(wire(), "--json", "--policies", EXAMPLE / "policies")
    assert (done.code, done.err, done.json["line"]) == (3, "", EXCEEDED)
    assert done.json["checks"] == [{"name": name, "result": "passed"} for name in CHECKS]
    assert [item["code"] for item in done.json["rules"] if item["fired"]] == [
        "effects.gate_satisfied", "limits.exceeded", "risk.acceptable",
    ]  # fmt: skip
    assert done.json["complete"] is True
    assert done.json["evaluation"] == {
        **pdp_decided(),
        "decision_id": done.json["evaluation"]["decision_id"],
        "bundle_revision": done.json["evaluation"]["bundle_revision"],
        "trace": done.json["evaluation"]["trace"],
    }
    assert rule(done, "sanctions.not_clear") == {
        "code": "sanctions.not_clear", "concern": "sanctions", "part": "deny", "title": "Beneficiary not clear",
        "file": str(SANCTIONS), "line": rule_line(SANCTIONS, "sanctions.not_clear"),
        "asked": True, "fired": False,
        "stopped": {
            "text": "not _clear",
            "file": str(SANCTIONS),
            "line": found(SANCTIONS, "not _clear"),
            "seen": [
                {"name": "_clear", "value": True, "defined": True},
                {"name": "input.context.sanctions_status", "value": "clear", "defined": True},
            ],
            "because": [],
        },
    }  # fmt: skip
    approvals = rule(done, "approvals.required")["stopped"]
    assert (approvals["text"], approvals["seen"]) == (
        "count(limits.exceeded) == 0",
        [
            {
                "name": "limits.exceeded",
                "value": [{"argument": "amount", "held": 25000, "limit": "wire.auto_approved", "value": 47500}],
                "defined": True,
            }
        ],
    )
    concerns = list(dict.fromkeys(item["concern"] for item in done.json["rules"]))
    before = concerns[: concerns.index("decision")]
    assert (before[0], before) == ("approvals", sorted(before))
    assert "sanctions" in concerns[len(before) :]


def pdp_decided() -> Any:
    options = [part for option in OPTIONS.items() for part in option]
    text = json.dumps(wire()).encode()
    return pdp("decide", "-", *options, "--policies", EXAMPLE / "policies", "--json", stdin=text).json


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_explanation_of_a_decision_is_equal_on_both_engines() -> None:
    done = explained(wire(), "--all")
    assert (done.code, done.err) == (3, "")
    assert explained(wire()) == (3, EXCEEDED + "\n  more: pdp explain limits.exceeded\n", "")
    lines = done.out.splitlines()
    assert lines[0] == EXCEEDED
    assert lines[2 : 2 + len(CHECKS)] == [f"  {name:<12} passed" for name in CHECKS]
    place = next(at for at, text in enumerate(lines) if "scopes.missing" in text)
    assert lines[place].startswith("  scopes       did not fire scopes.missing  ")
    stopped = found(concern("scopes"), "count(missing) > 0")
    assert lines[place + 1].strip() == f"because count(missing) > 0 (scopes.rego:{stopped})  missing = []"
    assert explained(wire(), "--all", "--engine", "sidecar").out == done.out


@pytest.mark.usefixtures("without_opa")
def test_explanation_without_opa_contains_no_rules_and_says_why() -> None:
    done = explained(wire(), "--all")
    assert (done.code, done.err) == (3, "")
    lines = done.out.splitlines()
    assert lines[0] == EXCEEDED
    assert lines[2 + len(CHECKS) : -1] == ["", "  rules: not known without OPA 1.22.4; get it with: pdp opa install"]
    document = explained(wire(), "--json").json
    assert (document["complete"], document["rules"]) == (False, [])


def test_trace_evaluates_only_the_manifest_entry_of_the_proposed_tool() -> None:
    tools = {"rag": {"risk": "low"}, "wire": {"risk": "high"}}
    data = {"config": {"concerns": []}, "manifests": {"sha256:a": {"version": "1", "tools": tools}, "sha256:b": {}}}
    request = {"action": {"name": "initiate", "properties": {"manifest_digest": "sha256:a", "tool": "wire"}}}
    assert traced_data(data, request) == {
        "config": {"concerns": []},
        "manifests": {"sha256:a": {"version": "1", "tools": {"wire": {"risk": "high"}}}},
    }


REJECTED = [
    ({"tool": "rm", "arguments": {}}, {}, "manifest", "'rm' is not a tool of manifest 2026.07.1"),
    (wire(amount="x"), {}, "schema", 'arguments.amount: "x" is not of type "number"'),
    (
        wire(),
        {"idempotency_key": None},
        "idempotency",
        "initiate_wire needs an idempotency key, but the session has none",
    ),
    (
        b"{",
        {},
        "proposal",
        "value: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
]


@pytest.mark.parametrize(("proposal", "changes", "check", "reason"), REJECTED)
def test_explanation_of_a_rejected_proposal_names_the_failed_check(
    tmp_path: Path, proposal: Any, changes: dict[str, Any], check: str, reason: str
) -> None:
    done = explained(proposal, "--json", s=session_file(tmp_path, **changes))
    assert done.code == 4
    assert done.json["line"] == f"REJECTED because {reason}; the policy was not asked"
    results = {entry["name"]: entry["result"] for entry in done.json["checks"]}
    position = CHECKS.index(check)
    passed, rest = CHECKS[:position], CHECKS[position + 1 :]
    assert results == {**dict.fromkeys(passed, "passed"), check: "failed", **dict.fromkeys(rest, "not reached")}
    assert done.json["rules"] == []


def test_explain_has_the_same_exit_codes_as_decide() -> None:
    assert explained(wire(amount=20000)).code == 0
    both = explained(wire(), "--policies", "x", "--bundle", "y")
    assert both == Done(
        2,
        "",
        "error: bundle and policies cannot be used together: a bundle contains its policies\n"
        "    hint: build them into the bundle: pdp bundle build --policies DIR -o FILE\n",
    )
    assert explained(wire(), m="missing.yaml").code == 2


def test_explanation_shows_facts_and_remedy_of_a_reason() -> None:
    manifest = effective()
    data = {"manifests": {manifest.digest: manifest.document}}
    reason: dict[str, Any] = {"code": "probe.a", "message": "As the test says."}
    reasons = {
        ": As the test says.": reason | {"details": {}},
        ": As the test says. Ask the desk.": reason | {"details": {}, "remedy": "Ask the desk."},
        ': As the test says. Here, approval is {"quorum":2}, held is null. Ask the desk.': reason
        | {"details": {"held": None, "approval": {"quorum": 2}}, "remedy": "Ask the desk."},
    }
    for text, stated in reasons.items():
        engine = Scripted(partial(stepped_up, stated))
        line = explain(Pep(manifest, engine).decide(wire(), session()), {}, data, None).line
        assert line == f"STEP_UP because probe.a{text}"


def stepped_up(reason: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    return {**answer("STEP_UP"), "reasons": [reason]}


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_explanation_escapes_control_characters() -> None:
    done = explained(wire(beneficiary_id="\x1b[2J\nALLOW", reference="\u202e"), "--all")
    assert all(text.isprintable() for text in done.out.split("\n"))
    done = explained({"tool": "\x1b[2J\u202e", "arguments": {}})
    assert all(text.isprintable() for text in done.out.split("\n"))


@pytest.mark.usefixtures("without_opa")
def test_explanation_masks_sensitive_values(tmp_path: Path) -> None:
    rules = yaml.safe_load((EXAMPLE / "governance.yaml").read_text())
    rules["actions"]["initiate_wire"]["sensitive"] = ["amount", "source_account"]
    governance = tmp_path / "governance.yaml"
    governance.write_text(yaml.safe_dump(rules))

    hidden = explained(wire(), "--json", g=governance)

    assert hidden.code == 3
    assert [value in hidden.out for value in ("47500", "acct-operating-4412")] == [False, False]
    assert hidden.json["line"] == EXCEEDED.replace("47500", "***")


def test_explanation_shows_the_sources_of_each_argument(tmp_path: Path) -> None:
    session = written(tmp_path / "session.json", {**assistant.SESSION, "prompt": ["Invite ben@office.example."]})
    proposal = written(tmp_path / "proposal.json", assistant.invite("ben@office.example"))
    files = ("-m", assistant.EXAMPLE / "manifest.yaml", "-g", assistant.EXAMPLE / "governance.yaml", "-s", session)

    done, plain = pdp("explain", proposal, *files), pdp("explain", proposal, *files, "--json")

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == [
        "  the run has read no untrusted text",
        "  `participants/0` (destination) is in your own words",
        "  `title` (body) comes only from the model: neither you nor any result contains it",
    ]
    assert [argument["sources"] for argument in plain.json["flow"]["arguments"]] == [["prompt"], ["model"]]
    assert explained(wire(), "--json").json["flow"] is None
