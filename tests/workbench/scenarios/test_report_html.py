"""The HTML report shows the results of a run, and escapes all texts from scenarios and policies."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pdp.workbench.coverage import Coverage, measure
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.reports.html import html_report
from pdp.workbench.scenarios.reports.text import markdown_report
from pdp.workbench.scenarios.results import RunResult
from pdp.workbench.scenarios.running.runner import run_suite

HOSTILE = "<script>alert(1)</script> & \"quotes\" 'too' </style> --> {{ 7*7 }} \u202e \x07"
SHOWN = "<script>alert(1)</script> & \"quotes\" 'too' </style> --> {{ 7*7 }} \\u202e \\x07"

MANIFEST = """
manifest_version: 1.0.0
tools:
  - name: send_note
    description: Send a note
    risk_tier: low
    scopes: [notes.send]
    schema: {type: object, properties: {text: {type: string, description: The note}}}
"""

SCENARIOS = """
manifest: manifest.yaml
session: {claims: {sub: clerk-7, emts: {notes.send: true}}}
scenarios:
  - name: a note is sent
    golden: true
    propose: {tool: send_note, arguments: {text: hello}}
    expect: {verdict: ALLOW, executed: true}
  - name: NAME
    why: NAME
    session: {claims: {emts: {notes.send: false}}}
    propose: {tool: send_note, arguments: {text: NAME}}
    expect: {verdict: ALLOW, codes: [limits.exceeded], arguments: {text: NAME}}
"""

VOID = {"meta", "input", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """A parsed HTML page: its texts, the attributes of its tags, and the tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inline: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.inline[self.open[-1]] = data
        elif data.strip():
            self.texts.append(" ".join(data.split()))

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.tags)


def run(folder: Path, name: str = HOSTILE) -> RunResult:
    (folder / "manifest.yaml").write_text(MANIFEST)
    quoted = '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'
    (folder / "scenarios.yaml").write_text(SCENARIOS.replace("NAME", quoted))
    return RunResult(tuple(run_suite(load_suite(folder / "scenarios.yaml"), ["embedded"])))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def coverage(hostile: RunResult) -> Coverage:
    return measure([(each.suite, each.results) for each in hostile.suites], None)


@pytest.fixture(scope="module")
def page(hostile: RunResult, coverage: Coverage) -> Page:
    return Page(html_report(replace(hostile, coverage=coverage.as_json())))


@pytest.mark.opa
def test_html_report_contains_scenario_results_and_explains_each_failure(page: Page, hostile: RunResult) -> None:
    texts = page.texts

    assert texts[0].startswith("1 passed, 1 failed: 1 file, embedded, ")
    assert texts[0] == texts[1]  # The title of the page equals the page's heading.
    for text in (
        "a note is sent",
        "golden",
        "Golden scenarios: 1; every proposal in the manifest: 1; schema-valid: 1.",
        f"{hostile.results[1].place.file}:9",
        '["limits.exceeded"]',
        '["scopes.missing"]',
        "Rules that fired",
        "limits.exceeded",
        "Rules that should have fired",
    ):
        assert text in texts


@pytest.mark.opa
def test_html_report_shows_expected_and_actual_values_side_by_side(page: Page) -> None:
    at = page.texts.index("differs") - 1

    assert page.texts[at : at + 9] == [
        "verdict", "differs", '"ALLOW"', '"DENY"', "codes", "differs", '["limits.exceeded"]', '["scopes.missing"]',
        "arguments",
    ]  # fmt: skip
    assert page.texts[at + 9] == page.texts[at + 10]  # A value that matches the expectation is shown without a mark.
    assert page.texts[at + 11] == "DENY"


@pytest.mark.opa
def test_html_report_escapes_html_in_a_scenario_name_everywhere(page: Page) -> None:
    assert page.texts.count(SHOWN) == 2  # The hostile text occurs both in the name of the scenario and in the reason.
    assert page.count("script") == page.count("style") == 1
    assert not any(name.startswith("on") or name in ("src", "action") for _, found in page.tags for name in found)


@pytest.mark.opa
def test_html_report_loads_no_other_files_and_runs_only_its_own_script(
    page: Page, hostile: RunResult, coverage: Coverage
) -> None:
    [policy] = [found["content"] for tag, found in page.tags if tag == "meta" and "http-equiv" in found]
    text = html_report(replace(hostile, coverage=coverage.as_json()))

    def source(tag: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(page.inline[tag].encode()).digest()).decode()}'"

    assert policy == (
        f"default-src 'none'; style-src {source('style')}; script-src {source('script')}; "
        "base-uri 'none'; form-action 'none'"
    )
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in page.inline["style"]
    assert "@import" not in page.inline["style"]
    assert {found["href"] for tag, found in page.tags if tag == "a"} == {
        "#results", "#coverage", "#matrix", "#suite-1",
    }  # fmt: skip


@pytest.mark.opa
def test_links_in_html_report_have_targets_and_ids_are_unique(page: Page) -> None:
    ids = [found["id"] for _, found in page.tags if "id" in found]

    assert len(ids) == len(set(ids))
    for _, found in page.tags:
        assert (found.get("href") or "#results").removeprefix("#") in ids
        assert (found.get("aria-labelledby") or "results") in ids


@pytest.mark.opa
def test_html_report_is_readable_without_scripts(page: Page) -> None:
    [form] = [found for tag, found in page.tags if tag == "form"]
    opened = ["open" in found for tag, found in page.tags if tag == "details"]

    # The filter form works only with the script, so the form is hidden until the script shows the form.
    assert "hidden" in form
    assert opened == [True, False]  # The failed scenario comes first and is unfolded.


@pytest.mark.opa
def test_html_report_shows_coverage_and_matrix(page: Page, coverage: Coverage) -> None:
    for message in (missing.message for missing in coverage.missing):
        assert message in page.texts
    # The report lists no codes of the baseline policies.
    assert "reached by" not in page.texts
    assert "Lines of Rego: unknown without OPA." in page.texts
    at = page.texts.index("Matrix: results of each tool's calls")
    assert page.texts[at + 1 : at + 10] == [
        "tool", "manifest", "ALLOW", "STEP_UP", "DENY", "rejected", "send_note", "1.0.0", "1",
    ]  # fmt: skip


@pytest.mark.opa
def test_html_report_lists_custom_reason_codes(hostile: RunResult, coverage: Coverage) -> None:
    code = {"part": "deny", "file": "own.rego", "line": 3, "exempt": None, "counts": True}
    codes = [{**code, "code": "notes.late", "scenario": "late"}, {**code, "code": "notes.early", "scenario": None}]

    page = Page(html_report(replace(hostile, coverage={**coverage.as_json(), "codes": codes})))

    at = page.texts.index("reached by")
    assert page.texts[at - 3] == "Reason codes: 1 of 2 custom codes are reached"
    assert page.texts[at + 1 : at + 7] == ["notes.late", "own.rego:3", "late", "notes.early", "own.rego:3", "missing"]


@pytest.mark.opa
def test_scenario_in_html_report_shows_its_input_and_that_engines_agree(hostile: RunResult) -> None:
    first, second = hostile.suites[0], replace(hostile.suites[0], engine="sidecar")
    other = tuple(replace(result, engine="sidecar") for result in first.results)
    both = RunResult((first, replace(second, results=other)))

    assert [(card.passed, card.engine) for card in both.cards] == [
        (False, "embedded, sidecar"), (True, "embedded, sidecar"),
    ]  # fmt: skip
    texts = Page(html_report(both)).texts
    assert texts[0].startswith("2 passed, 2 failed: 1 file, embedded, sidecar, ")
    given = texts.index("proposal")
    assert texts[given + 1].startswith('{"tool": "send_note", "arguments": {"text": ')
    assert texts[given + 2] == "session"
    claims = '{"claims": {"emts": {"notes.send": false}, "sub": "clerk-7"}, "time": "2026-01-01T00:00:00Z"}'
    assert texts[given + 3] == claims
    disagreed = RunResult((first, replace(second, results=(replace(other[0], error="late"), other[1]))))
    assert [(card.name == "a note is sent", card.engine) for card in disagreed.cards] == [
        (False, "embedded, sidecar"), (True, "sidecar"), (True, "embedded"),
    ]  # fmt: skip


@pytest.mark.opa
def test_markdown_report_lists_failures_first_and_escapes_markup(hostile: RunResult, coverage: Coverage) -> None:
    lines = markdown_report(replace(hostile, coverage=coverage.as_json())).splitlines()

    assert lines[0].startswith("## 1 passed, 1 failed: 1 file, embedded, ")
    assert lines[2].startswith("<details open><summary>")
    assert f"      {hostile.results[1].place.file}:9" in lines
    assert next(line for line in lines if line.strip().startswith("verdict ")).split() == [
        "verdict", "ALLOW", "|", "DENY"
    ]  # fmt: skip
    assert lines.index("<details><summary>every scenario</summary>") > lines.index("**missing** no scenario in which "
                                                                                   "send\\_note of manifest 1.0.0 is "
                                                                                   "not ALLOW")  # fmt: skip
    plain = [re.sub(r"`[^`]*`", "", line) for line in lines if not line.startswith("    ")]
    assert [line for line in plain if re.search(r"(?<!\\)<script|\u202e", line)] == []


@pytest.mark.opa
def test_html_report_without_coverage_has_no_coverage_section(hostile: RunResult) -> None:
    page = Page(html_report(hostile))

    assert {found["href"] for tag, found in page.tags if tag == "a"} == {"#results", "#suite-1"}


@pytest.mark.opa
def test_html_report_can_contain_a_lone_surrogate(tmp_path: Path) -> None:
    first = run(tmp_path, "plain")
    result = first.results[1]
    object.__setattr__(result, "error", "\ud800 and\nanother line")

    html_report(first).encode()


def test_html_report_joins_adjacent_line_numbers() -> None:
    from pdp.workbench.shown_file import line_ranges

    cases: list[tuple[list[int], Any]] = [([], ""), ([3], "3"), ([3, 4], "3-4"), ([9, 1, 2, 3, 7], "1-3, 7, 9")]
    assert [line_ranges(lines) for lines, _ in cases] == [text for _, text in cases]
