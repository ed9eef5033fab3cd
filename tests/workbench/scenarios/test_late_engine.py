"""A timeout of the engine is an error of the run and never a verdict, even if a scenario expects the timeout's code."""

from pathlib import Path
from typing import Any

import pytest

from pdp.engine.protocol import DECISION, Engine
from pdp.errors import EngineTimeoutError
from pdp.workbench.engines import LATE
from pdp.workbench.scenarios.running.runner import Runner
from tests.support.command_line import pdp, written
from tests.support.scenario_files import READ, loaded, one, project


class Late(Engine):
    """An engine whose decisions time out immediately."""

    name = "late"

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        raise EngineTimeoutError("nothing came")


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param({"propose": READ, "expect": {"verdict": "ALLOW"}}, id="expected verdict"),
        pytest.param({"propose": READ, "expect": {"verdict": "DENY", "codes": ["engine.timeout"]}}, id="the failure"),
        pytest.param({"propose": READ, "expect": {"executed": False}}, id="no expectation of the decision"),
        pytest.param({"plan": [READ], "expect": [{"verdict": "DENY", "codes": ["engine.timeout"]}]}, id="a plan"),
        pytest.param({"request": {}, "expect": {"codes": ["engine.timeout"]}}, id="a request"),
        pytest.param({"steps": [{"propose": READ, "expect": {"executed": False}}] * 2}, id="several steps"),
    ],
)
def test_engine_timeout_is_not_a_verdict(tmp_path: Path, scenario: Any) -> None:
    suite = loaded(tmp_path, one(**scenario))

    with pytest.raises(EngineTimeoutError) as caught:
        Runner(suite, Late()).run_all()

    assert caught.value.message == f"{suite.file}:1 it: no verdict: nothing came"


ENDLESS = Path(__file__).with_name("endless.rego").read_text()


@pytest.mark.opa
def test_every_scenario_command_reports_an_engine_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slow = {"tool": "read_note", "arguments": {"id": "slow"}}
    project(tmp_path, one(propose=slow, golden=True, expect={"verdict": "ALLOW"}), policies=["policies"])
    (tmp_path / "policies/custom/concerns/endless").mkdir(parents=True)
    written(tmp_path / "policies/custom/concerns/endless/endless.rego", ENDLESS)
    options = ("-m", "manifest.json", "--policies", "policies")
    assert pdp("bundle", "build", "-o", "bundle.tar.gz", *options).code == 0
    assert pdp("bundle", "build", "-o", "last.tar.gz", "-m", "manifest.json").code == 0

    diff = ("bundle", "diff", "last.tar.gz", "bundle.tar.gz", "--scenarios", ".", "--generate", "0")
    complaint = f" it: no verdict: the policy did not finish within its deadline\n    hint: {LATE}\n"
    complaint += "    more: pdp explain engine.timeout\n"
    for command in (
        ("test", "."),
        ("mutate", "."),
        diff,
        ("release", "check", ".", "--bundle", "bundle.tar.gz"),
    ):
        done = pdp(*command, "--engine-timeout", "0.2")
        assert (done.code, done.out, done.err) == (2, "", f"error: scenarios.json:1{complaint}"), command

    late = one(propose=slow, expect={"verdict": "ALLOW"})
    project(tmp_path, {**late, "name": "quick", "propose": READ}, late, policies=["policies"])
    done = pdp(*diff, "--engine-timeout", "0.2", "--fail-on", "loosening")
    assert (done.code, done.err) == (1, "")
    assert "not finished: known calls: scenarios.json:1 it: no verdict: " in done.out
