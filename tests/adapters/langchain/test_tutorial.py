"""The tutorial of LangGraph runs as printed, where the framework is installed."""

import os
import sys
from pathlib import Path

import pytest

from tests.end_to_end.pages.test_snippets import Page, fences

TUTORIAL = "docs/tutorials/langgraph.md"


@pytest.mark.process
def test_agent_of_the_tutorial_pauses_and_resumes(tmp_path: Path, opa: Path) -> None:
    page = Page(TUTORIAL, tmp_path / "work", opa)
    page.environment["PATH"] = f"{tmp_path}/bin{os.pathsep}{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin"

    for fence in fences(TUTORIAL):
        needs_framework = fence.comment == "not run: needs its framework"
        page.take(fence._replace(comment="") if needs_framework else fence)
