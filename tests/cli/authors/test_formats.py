"""`--format github` prints escaped workflow commands, and `--format sarif` only SARIF 2.1.0."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdp.cli.findings import reported
from pdp.errors import Fault, FileFaultsError, Place
from pdp.installed import code_url
from tests.support.command_line import pdp, written
from tests.support.scenario_files import READ, one, project

MANIFEST = {"manifest_version": "1", "tools": [{"name": "read", "schema": {"type": "object"}, "scops": ["a"]}]}


def sarif(text: str) -> Any:
    return json.loads(text)["runs"][0]


def test_github_format_escapes_messages_and_properties(capsys: pytest.CaptureFixture[str]) -> None:
    fault = Fault(Place("a,b:c.yaml", 3, 5), "50% of\r\n::error::it", "write :, not %", warning=True)
    with pytest.raises(FileFaultsError), reported("github"):
        raise FileFaultsError([fault])
    assert capsys.readouterr().out == (
        "::warning file=a%2Cb%3Ac.yaml,line=3,col=5,title=pdp.file_faults::"
        "50%25 of%0D%0A::error::it%0Ahint: write :, not %25\n"
    )


def test_manifest_lint_reports_faults_in_both_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk").mkdir()
    file = written(tmp_path / "desk" / "manifest.json", MANIFEST)
    plain, github, answer = (pdp("manifest", "lint", file, "--format", form) for form in ("text", "github", "sarif"))
    assert (plain.code, github.code, answer.code) == (2, 2, 2)
    assert github.out.startswith("::error file=desk/manifest.json,line=1,col=")
    assert github.err == plain.err
    assert answer.err == ""
    run = sarif(answer.out)
    [result] = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "desk/manifest.json"
    assert (result["ruleId"], result["level"]) == ("pdp.file_faults", "error")
    assert run["tool"]["driver"]["rules"] == [{"id": "pdp.file_faults", "helpUri": code_url("pdp.file_faults")}]


def test_failed_scenario_is_reported_at_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project(tmp_path, one(name="wrong", propose=READ, expect={"verdict": "DENY"}))
    monkeypatch.setenv("PDP_FORMAT", "github")
    github = pdp("test", file, "--engine", "embedded")
    assert github.code == 1
    assert 'title=pdp.scenario_failed::wrong: verdict: expected "DENY", not "ALLOW"' in github.out
    assert "1 failed" in github.out
    answer = pdp("test", file, "--engine", "embedded", "--format", "sarif")
    assert (answer.code, len(sarif(answer.out)["results"])) == (1, 1)
