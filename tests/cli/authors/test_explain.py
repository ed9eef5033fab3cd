"""`pdp explain CODE`: texts, the rule, the scenario, the link, and hints for unknown codes."""

import json
from pathlib import Path

import pytest

from pdp.cli.commands.init import project_files
from pdp.installed import code_url
from tests.support.command_line import pdp, written


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in project_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        written(tmp_path / name, text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("project")
def test_codes_of_policy_program_and_own_concerns_are_explained() -> None:
    policy, program, own = (
        pdp("explain", code) for code in ("purposes.missing", "idempotency.in_flight", "replies.recipient_not_allowed")
    )
    assert policy.out.splitlines() == [
        "purposes.missing  Purpose missing",
        "  The tool needs a purpose, and the call states none.",
        "  remedy    State the purpose of the run in the session's `purpose`.",
        "  rule      policies/authz/concerns/purposes/purposes.rego:19",
        f"  more      {code_url('purposes.missing')}",
    ]
    assert program.out.startswith("idempotency.in_flight  Call still running\n")
    assert "  rule      policies/custom/concerns/replies/replies.rego:16\n  scenario  edges.scenarios.yaml:" in own.out
    assert "https://" not in own.out
    assert [answer.code for answer in (policy, program, own)] == [0, 0, 0]


@pytest.mark.parametrize(("name", "code"), [("4", "exit.deny"), ("STEP_UP", "exit.step_up")])
def test_json_names_the_code_and_its_page(name: str, code: str) -> None:
    answer = json.loads(pdp("explain", name, "--json").out)
    assert (answer["code"], answer["link"]) == (code, code_url(code))


def test_unknown_code_is_reported_with_the_nearest_one() -> None:
    unknown = pdp("explain", "purpose.missing")
    assert (unknown.code, unknown.out) == (2, "")
    assert "hint: did you mean `purposes.missing`?" in unknown.err
    assert "no manifest given" in pdp("explain", "missing.json").err
