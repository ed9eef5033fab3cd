"""`codes()` lists every code that users meet, with texts, the rule or class behind it, and a scenario."""

import re
from collections.abc import Iterator
from pathlib import Path

import pdp
from pdp.approvals.people import Refusal
from pdp.cli import Exit
from pdp.manifest.fields import NotATool
from pdp.proposal import FailureCode, RejectionCode
from pdp.service.errors import CODES as HTTP_CODES
from pdp.service.models.proposals import KEY_CODES
from pdp.workbench.codes import codes
from tests.support import ROOT
from tests.test_errors import drawn

CODES = {code.code: code for code in codes()}


def raised() -> Iterator[str]:
    """Yield the codes that the package passes as constants, such as `PatternFault("run.full", ...)`."""
    for file in Path(pdp.__file__).parent.rglob("*.py"):
        yield from re.findall(r'(?:PatternFault|DeniedError|denied)\(\s*"([a-z_]+\.[a-z_]+)"', file.read_text("utf-8"))


def test_every_code_of_the_program_is_listed() -> None:
    errors = {line.code: f"{line.module}.{line.name}" for line in reversed([*drawn()])}
    stated = {code.code: code.raised for code in CODES.values() if code.kind == "error"}
    assert stated == {code: name for code, name in errors.items() if code != "decision.request_invalid"}
    enumerated = [*RejectionCode, *FailureCode, *NotATool, *HTTP_CODES.values(), *KEY_CODES, *raised()]
    enumerated += [f"approvals.{refusal}" for refusal in Refusal]
    enumerated += [f"exit.{code.name.lower()}" for code in Exit]
    assert sorted(set(enumerated) - CODES.keys()) == []


def test_every_code_has_texts_and_codes_of_policies_their_rule() -> None:
    for code in CODES.values():
        assert code.title
        assert code.meaning.endswith("."), code
        assert code.remedy.endswith(".") or code.kind == "reason" or code.code == "exit.ok", code
    missing = CODES["purposes.missing"]
    rule = Path(missing.file).read_text(encoding="utf-8").splitlines()[missing.line - 1]
    assert rule.startswith("deny contains")
    assert "search.request_shape" in CODES


def test_codes_of_own_concerns_are_listed_with_the_scenario_that_shows_them() -> None:
    project = ROOT / "pdp" / "cli" / "project"
    own = {code.code: code for code in codes([project / "policies"], [project])}
    code = own["replies.recipient_not_allowed"]
    assert code.file.endswith("replies.rego")
    assert "scenarios.yaml:" in code.scenario
