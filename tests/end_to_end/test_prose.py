"""The check of prose in `scripts/lint` marks unclear texts and accepts plain texts."""

from pathlib import Path

import pytest

from scripts.prose import Text, faults, mark_of, texts

TREE = Path(__file__).resolve().parents[2]


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


def test_prose_check_finds_every_category_of_text_in_this_repository() -> None:
    # In a checkout without history, there are no commit subjects.
    kinds = {text.kind for text in texts(TREE)} | {"commit subjects"}
    assert kinds == {
        "METADATA",
        "commit subjects",
        "comments",
        "docstrings",
        "messages",
        "pages",
        "scenario names",
        "test names",
    }
