"""The check of prose in `scripts/lint` marks unclear texts and accepts plain texts."""

from pathlib import Path

import pytest

from scripts.prose import BOUNDS, Text, faults, mark_of, page_faults, texts


@pytest.mark.parametrize(
    "text",
    [
        "Of a token only the hash is stored.",
        "Return the file. What is missing is an error.",
        "a refund that nobody has asked for",
        "An empty list is none.",
        "Start the program anew.",
        "The tool's name stands in the manifest.",
    ],
)
def test_prose_check_marks_unclear_text(text: str) -> None:
    assert mark_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the hash of the token.",
        "Raise `UsageError` if a file is missing. Other files are ignored.",
        "Who may approve a refund?",
        "The list\nof roles is empty.",
    ],
)
def test_prose_check_does_not_mark_plain_text(text: str) -> None:
    assert mark_of(text) is None


def test_prose_check_reports_a_folder_with_too_many_unclear_texts() -> None:
    group = [Text("comments", "pdp/flow/run.py", number, "The store keeps the key.") for number in range(40)]
    assert not list(faults(group, 5))
    group += [Text("comments", "pdp/flow/run.py", 99, "Nobody may know the key.")] * 2
    assert any(line.startswith("comments in pdp/flow: 4.8 % of 42") for line in faults(group, 5))


def test_prose_check_finds_every_kind_of_text(tmp_path: Path) -> None:
    code = '"""Return the hash."""\n# The store keeps it.\nHINT = "name the key"\n\n\ndef test_it() -> None: ...\n'
    rego = "# METADATA\n# title: Purpose missing\npackage authz\n\n# The tool needs one.\n"
    files = {
        "pdp/test_key.py": code,
        "policies/purposes.rego": rego,
        "tests/a.scenarios.yaml": "name: a read is allowed\n",
        "docs/how-to/a.md": "# Title\n\nThe store keeps the key.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    # Without history, there are no commit subjects.
    assert {text.kind for text in texts(tmp_path)} | {"commit subjects"} == BOUNDS.keys()


def test_prose_check_reports_long_lines_paragraphs_and_guides(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n" + "It runs. " * 6 + "\n\n" + "word " * 40 + "\n\n```sh\n" + "word " * 600 + "\n```\n")

    assert [line.partition(": ")[2] for line in page_faults(page, "docs/how-to/page.md")] == [
        "the line has 200 characters, at most 160",
        "the line has 3000 characters, at most 160",
        "6 sentences, at most 5: It runs. It runs. It runs. It runs. It runs. It runs.",
    ]
    page.write_text("word " * 30 + "\n" + ("word " * 30 + "\n") * 17)
    assert [*page_faults(page, "docs/how-to/page.md")] == [
        "docs/how-to/page.md: 540 words without its snippets, at most 500"
    ]
