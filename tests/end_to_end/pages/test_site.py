"""The site of the documentation has each page, as HTML and as Markdown, in a folder for each version."""

import json
import re
from pathlib import Path

import pytest

from scripts.site import DOCS, add_version, build
from tests.support import ROOT

pytestmark = pytest.mark.process

ADDRESS = re.compile(r"\[[^\]\n]*\]\(([^)\s#]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "work").mkdir()
    return build(folder / "site", "1.2.0", folder / "work")


def test_site_has_each_page_as_html_and_as_markdown(site: Path) -> None:
    pages = {page.relative_to(site).parent for page in site.rglob("index.html")}
    written = {page.relative_to(DOCS) for page in DOCS.rglob("*.md")}

    assert {page.parent if page.name == "index.md" else page.with_suffix("") for page in written} <= pages
    assert all((site / page / "index.md").exists() for page in pages)
    listed = re.findall(r"\]\(\S+?/latest/(\S+)/index\.md\)", (site / "llms.txt").read_text())
    assert {Path(page) for page in listed} <= pages
    assert "how-to/set-limits" in listed
    assert "reference/manifest" in listed


def test_search_of_the_site_finds_generated_pages(site: Path) -> None:
    index = json.loads((site / "search.json").read_text())

    assert any("reference/codes/purposes.missing" in item["location"] for item in index["items"])


def test_newest_version_is_the_one_that_links_lead_to(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.2.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(name)
        add_version(tmp_path, name)

    versions = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in versions] == ["0.10.0", "0.9.0", "0.2.0"]
    assert [entry["aliases"] for entry in versions] == [["latest"], [], []]
    assert (tmp_path / "latest/index.html").read_text() == "0.10.0"


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("[x](nowhere.md)", "page does not exist"),
        ("[x](index.md#nowhere)", "anchor does not exist"),
        ("[x](../nowhere.txt)", "../nowhere.txt does not exist"),
    ],
)
def test_broken_link_fails_the_build(line: str, report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "docs"
    for section in ("tutorials", "how-to", "reference", "explanation", "adr"):
        (docs / section).mkdir(parents=True)
        (docs / section / "index.md").write_text(f"# {section}\n")
    (docs / "index.md").write_text(f"# Home\n\n{line}\n")
    (tmp_path / "work").mkdir()
    monkeypatch.setattr("scripts.site.DOCS", docs)

    with pytest.raises(SystemExit, match=re.escape(report)):
        build(tmp_path / "site", "1.0.0", tmp_path / "work", reference=docs / "reference")


def test_each_link_between_files_of_the_repository_leads_to_a_file() -> None:
    """Pages of the reference are generated, so links to them are checked by the build of the site."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    pages += [page for folder in ("examples", "deploy", ".github") for page in (ROOT / folder).rglob("*.md")]
    broken = [
        (page.name, address)
        for page in pages
        for address in ADDRESS.findall(page.read_text(encoding="utf-8"))
        if not re.match(r"\w+:", address) and "docs/reference/" not in address
        if not (page.parent / address).exists()
    ]

    assert broken == []
