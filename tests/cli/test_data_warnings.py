"""What the policy cannot read in a data file is told of where the file is given, and decides nothing by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.command_line import Done, decided, line, pdp, written
from tests.support.payments import wire

FAULTY: list[tuple[Any, str]] = [
    ({"planning": []}, "`directory.planning` must be a mapping, not a list"),
    ({"planning": {"A": None}}, "`directory.planning.A` must be a mapping, not null"),
    ({"planning": {"A": {"tool": "x"}}}, "`directory.planning.A` is not a planning rule"),
    ({"planning": {"A": {"tool": "x", "atmost": 1}}}, "unknown key `atmost`"),
    ({"planning": {"A": {"tool": "x", "at_most": -1}}}, "`directory.planning.A.at_most` must be at least 0, not `-1`"),
    ({"planning": {"A": {"requires": ["x"], "tool": "y"}}}, "`directory.planning.A` is not a planning rule"),
    ({"planning": {"A": {"requires": []}}}, "`directory.planning.A.requires` must not be empty"),
    ({"corpora": []}, "`directory.corpora` must be a mapping, not a list"),
    ({"corpora": {"hr": {"markings": "pii"}}}, "`directory.corpora.hr.markings` must be a list, not `pii`"),
    (
        {"documents": {"d": {"restricted": "yes"}}},
        "`directory.documents.d.restricted` must be true or false, not `yes`",
    ),
    ({"documents": {"d": {"corpus": None}}}, "`directory.documents.d.corpus` must be a string, not null"),
    ({"entitlements": {"ann": "all"}}, "`directory.entitlements.ann` must be a mapping, not `all`"),
    ({"entitlements": {"ann": {"corpora": [1]}}}, "`directory.entitlements.ann.corpora[0]` must be a string, not `1`"),
]


def warnings(done: Done) -> list[str]:
    """The first line of each warning, without the file."""
    return [each.partition(": ")[2] for each in done.err.splitlines() if ": warning: " in each]


@pytest.mark.parametrize(("directory", "message"), FAULTY, ids=[message for _, message in FAULTY])
def test_what_the_policy_cannot_read_is_a_warning_of_decide(directory: Any, message: str, tmp_path: Path) -> None:
    data = written(tmp_path / "data.json", {"directory": directory})

    done = decided(wire(), "--data", data)

    assert (done.code, warnings(done)) == (3, [f"warning: {message}"])


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_explain_and_build_warn_alike(tmp_path: Path) -> None:
    data = written(tmp_path / "data.yaml", "directory:\n  entitlements: {ann: all}\n")
    said = (
        f"{data}:2:23: warning: `directory.entitlements.ann` must be a mapping, not `all`\n"
        "      entitlements: {ann: all}\n"
        "                          ^\n"
    )

    explained = pdp("explain", *line(written(tmp_path / "wire.json", wire()))[1:], "--data", data)
    built = pdp("bundle", "build", "-o", tmp_path / "b.tar.gz", "--data", data)

    assert (explained.code, explained.err) == (3, said)
    assert (built.code, built.err) == (0, said)


def test_what_is_as_it_should_be_is_passed_over(tmp_path: Path) -> None:
    """What the application has of its own beside it as well, and rules that only two files together make whole."""
    first = written(
        tmp_path / "first.yaml", "directory: {mine: 7, planning: {A: {tool: x}}, corpora: {c: {owner: 1}}}\n"
    )
    second = written(
        tmp_path / "second.json", {"directory": {"planning": {"A": {"at_most": 1}}}, "settings": {"a": []}}
    )
    files = [first, second, ROOT / "examples/rag/data.json", ROOT / "examples/clinical/planning.yaml"]

    done = decided(wire(), *(word for file in files for word in ("--data", file)))

    assert (done.code, done.err) == (3, "")


def test_the_faults_of_each_file_have_its_name(tmp_path: Path) -> None:
    files = [written(tmp_path / name, {"directory": {name[0]: 1, "corpora": []}}) for name in ("a.json", "b.json")]
    written(files[1], {"directory": {"documents": 5}})

    done = decided(wire(), "--data", files[0], "--data", files[1])

    assert [each.split(": ")[0] for each in done.err.splitlines() if ": warning: " in each] == [
        f"{files[0]}:1:35", f"{files[1]}:1:29",
    ]  # fmt: skip
