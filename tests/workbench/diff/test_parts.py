"""Single functions of a bundle diff: pairing of manifests, directions of changes, comparison of data, and reports."""

import re
from pathlib import Path
from typing import Any

import pytest

from pdp.decision import Decision, Obligation, Reason, Verdict
from pdp.engine.bundle.file import read_bundle
from pdp.json import canonical
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.comparison import change_of
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.reports import markdown, text_lines
from pdp.workbench.diff.result import BundleDiff
from pdp.workbench.diff.structure import data_changes
from tests.support.command_line import pdp
from tests.support.payments import BUNDLE
from tests.workbench.diff.test_bundle_diff import made, manifest

HOSTILE = "<script>alert(1)</script> | `x` @all \u202e"


def document(version: str, **tools: str) -> dict[str, Any]:
    """Return a manifest whose tools have these actions."""
    entries = {name: {"name": name, "pdp_action": action} for name, action in tools.items()}
    return {"manifest_version": version, "tools": entries}


OLD = {"a1": document("1", pay="pay", read="read"), "b1": document("1", search="search")}
NEW = {"a2": document("2", pay="pay_out", read="read"), "b1": OLD["b1"], "c1": document("1", draft="draft")}


def test_bundle_diff_compares_the_manifests_that_have_tools_in_common() -> None:
    assert Manifests(OLD, NEW).pairs == (("a1", "a2"), ("b1", "b1"), (None, "c1"))
    assert Manifests(NEW, OLD).pairs == (("a2", "a1"), ("b1", "b1"), ("c1", None))
    # The old manifest is paired with itself, and also with the added manifest.
    assert Manifests({"a1": OLD["a1"]}, {"a1": OLD["a1"], "a2": NEW["a2"]}).pairs == (
        ("a1", "a1"), ("a1", "a2"),
    )  # fmt: skip


def asked(digest: Any, version: str = "1", tool: str = "pay", action: str = "pay") -> dict[str, Any]:
    properties = {"manifest_digest": digest, "manifest_version": version, "tool": tool}
    return {"action": {"name": action, "properties": properties}}


@pytest.mark.parametrize(
    ("request_", "old", "new"),
    [
        pytest.param(asked("a1"), asked("a1"), asked("a2", "2", action="pay_out"), id="old digest"),
        pytest.param(
            asked("a2", "2", action="pay_out"), asked("a1"), asked("a2", "2", action="pay_out"), id="new digest"
        ),
        pytest.param(asked("b1", tool="search"), asked("b1", tool="search"), asked("b1", tool="search"), id="same"),
        pytest.param(
            asked("a1", "9"), asked("a1", "9"), asked("a2", "9", action="pay_out"), id="a wrong version stays"
        ),
        pytest.param(
            asked("a1", action="x"), asked("a1", action="x"), asked("a2", "2", action="x"), id="a wrong action"
        ),
        pytest.param(asked("c1", tool="draft"), asked("c1", tool="draft"), asked("c1", tool="draft"), id="no pair"),
        pytest.param(asked(7), asked(7), asked(7), id="mistyped"),
        pytest.param([], [], [], id="no object"),
    ],
)
def test_diff_adapts_a_request_to_the_manifest_of_each_bundle(request_: Any, old: Any, new: Any) -> None:
    assert Manifests(OLD, NEW).requests(request_) == (canonical(old), canonical(new))


def decided(verdict: Verdict, *codes: str, duties: tuple[str, ...] = (), details: Any = None) -> Decision:
    reasons = tuple(Reason(code, "words", details or {}) for code in codes)
    return Decision(verdict, reasons, tuple(Obligation(each, verdict, {}) for each in duties), "id", None, None)


DENY, STEP_UP, ALLOW = Verdict.DENY, Verdict.STEP_UP, Verdict.ALLOW


CHANGES = [
    (decided(DENY, "a.b"), decided(ALLOW, "c.d", duties=("x",)), "loosens"),
    (decided(STEP_UP, "a.b"), decided(ALLOW, "c.d"), "loosens"),
    (decided(DENY, "a.b"), decided(STEP_UP, "c.d"), "loosens"),
    (decided(ALLOW, "a.b", duties=("x",)), decided(ALLOW, "a.b"), "loosens"),
    (decided(ALLOW, "a.b", duties=("x",)), decided(ALLOW, "a.b", duties=("y",)), "loosens"),
    (decided(ALLOW, "a.b"), decided(STEP_UP, "c.d"), "tightens"),
    (decided(STEP_UP, "a.b"), decided(DENY, "c.d"), "tightens"),
    (decided(ALLOW, "a.b"), decided(ALLOW, "a.b", duties=("x",)), "tightens"),
    (decided(STEP_UP, "a.b"), decided(STEP_UP, "a.b", details={"quorum": 1}), "unclear"),
    (decided(DENY, "a.b", "c.d"), decided(DENY, "a.b"), "unclear"),
    (decided(DENY, "a.b"), decided(DENY, "a.b", "c.d"), "tightens"),
]
"""Pairs of decisions with the direction of the change, from the most to the least dangerous."""


def test_changed_decision_counts_as_loosened_or_tightened_and_has_a_rank() -> None:
    changes = [change_of(old, new) for old, new, _ in CHANGES]

    assert [change and change.direction for change in changes] == [direction for *_, direction in CHANGES]
    assert sorted(filter(None, changes), key=lambda change: change.rank) == changes


def test_diff_ignores_changed_messages_of_reasons() -> None:
    other = Decision(DENY, (Reason("a.b", "other words", {}),), (), "other id", "sha256:1", 7)

    assert change_of(decided(DENY, "a.b"), other) is None


def test_diff_compares_data_path_by_path(tmp_path: Path) -> None:
    old = {
        "corpora": {"hr": {"markings": ["pii"]}, "it": {"markings": ["a", "b"]}},
        "documents": {"d": {"restricted": True}, "e": {"corpus": "hr"}},
        "entitlements": {"ann": {"corpora": ["hr"]}},
        "planning": {"one": {"requires": ["x"]}},
    }
    new = {
        "corpora": {"hr": {"markings": ["pii", "secret"]}, "it": {"markings": ["b"]}},
        "documents": {"d": {"restricted": False}, "e": {"corpus": "it"}},
        "entitlements": {"ann": {"corpora": []}, "bob": {"corpora": ["hr"]}},
    }
    files = [
        made(tmp_path / name, directory=each, settings={"hours": {"open": hour}})
        for name, each, hour in (("o", old, 8), ("n", new, 9))
    ]

    found = data_changes(*map(read_bundle, files))

    assert {change.name: (change.what, change.direction.value) for change in found} == {
        "directory.corpora.hr.markings": ("changed", "tightens"),
        "directory.corpora.it.markings": ("changed", "loosens"),
        "directory.documents.d.restricted": ("changed", "loosens"),
        "directory.documents.e.corpus": ("changed", "unclear"),
        "directory.entitlements.ann.corpora": ("changed", "tightens"),
        "directory.entitlements.bob": ("added", "loosens"),
        "directory.planning": ("removed", "loosens"),
        "settings.hours.open": ("changed", "unclear"),
    }
    assert len(found) == 8


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> BundleDiff:
    """Return a difference whose names contain Markdown and HTML markup."""

    def named(document: Any) -> None:
        document["manifest_version"] = "2026.07.2"
        document["tools"]["initiate_wire"]["scopes"] = [HOSTILE]

    folder = tmp_path_factory.mktemp("hostile")
    return bundle_diff(BUNDLE, made(folder / "new.tar.gz", manifest=manifest(named)), most=600)


@pytest.mark.opa
def test_markdown_report_escapes_markup_in_names(hostile: BundleDiff) -> None:
    text = markdown(hostile)
    # Remove the fenced blocks, because Markdown does not format the lines in these blocks, which start with + or -.
    plain = re.sub(r"(?ms)^```diff$.*?^```$", "", text)
    outside = [line for line in plain.splitlines() if not line.startswith("    ")]

    assert not [
        line
        for line in outside
        if re.search(r"(?<!\\)<script", line) or "\u202e" in line or re.search(r"(?<!\\)@all", line)
    ]
    assert text.startswith("## Bundle diff: ")


@pytest.mark.opa
def test_text_and_json_reports_contain_the_same_changes(hostile: BundleDiff) -> None:
    whole = hostile.as_json()
    text = "\n".join(text_lines(hostile))

    assert set(whole) == {
        "old",
        "new",
        "differs",
        "loosens",
        "review",
        "unseen",
        "structure",
        "known",
        "generated",
        "unfinished",
        "unproved",
    }
    assert whole["generated"]["groups"]
    assert whole["review"]
    assert all(f"{item['direction']:<9} {item['sentence']}\n" in text for item in whole["review"])
    assert {name for item in whole["review"] for name in item["ids"]} == {*hostile.loosenings(), *hostile.unseen()}


@pytest.mark.opa
def test_bundle_diff_prints_text_json_and_markdown(tmp_path: Path) -> None:
    def lenient(document: Any) -> None:
        document["manifest_version"] = "2026.07.2"
        document["tools"]["initiate_wire"]["scopes"] = []

    new = made(tmp_path / "new.tar.gz", manifest=manifest(lenient))
    line = ["bundle", "diff", BUNDLE, new, "--generate"]

    plain = pdp(*line, 100, "--fail-on", "loosening")
    as_json = pdp(*line, 0, "--json")
    as_markdown = pdp(*line, 0, "--markdown")

    assert (plain.code, as_json.code, as_markdown.code) == (1, 0, 0)
    sentence = "Calling initiate_wire requires no scope; before, payments.wire.initiate."
    assert f"\nloosens   {sentence}\n" in plain.out
    assert as_json.json["structure"]["loosenings"][0]["what"] == "initiate_wire: scopes: removed payments.wire.initiate"
    assert as_markdown.out.startswith("## Bundle diff: ")


def test_bundle_diff_does_not_say_whether_a_changed_contract_loosens_or_tightens(tmp_path: Path) -> None:
    def other(document: Any) -> None:
        document["tools"]["initiate_wire"]["contract"] = "sha256:0"
        document["agents"] = {"agent:payments": {"initiate_wire": "2.1.0"}}

    new = made(tmp_path / "new.tar.gz", manifest=manifest(other))
    bundles = read_bundle(BUNDLE), read_bundle(new)

    assert [(change.direction, change.name) for change in BundlePair.of(Path(), *bundles).manifests.changes()] == [
        ("unclear", "manifest"), ("unclear", "initiate_wire: contract"), ("tightens", "agents"),
    ]  # fmt: skip
    # The diff cannot tell whether the changed contract loosens the policy. For example, a model may now be able to set
    # a fact.
    difference = bundle_diff(BUNDLE, new, most=0)
    assert next(iter(difference.unseen().values())).startswith("initiate_wire: contract: ")
    assert (difference.as_json()["loosens"], difference.fails("loosening")) == (False, True)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        pytest.param(
            ["--json", "--markdown"],
            "error: --json and --markdown cannot be used together\n    hint: use one of them\n", id="two forms",
        ),
        pytest.param(
            ["--log", "absent.jsonl"],
            "error: absent.jsonl: no such file\n    hint: check the path\n",
            id="no log",
        ),
    ],
)  # fmt: skip
def test_bundle_diff_with_wrong_options_exits_with_2(line: list[str], complaint: str) -> None:
    done = pdp("bundle", "diff", BUNDLE, BUNDLE, *line)

    assert (done.code, done.out, done.err) == (2, "", complaint)
