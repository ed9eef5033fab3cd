"""Build the site of the documentation with Zensical. Run it as `scripts/docs`.

The site has a folder for each version, and `versions.json` for the theme's menu of versions. Zensical has no `llms.txt`
and no Markdown of its pages, so this script writes both.
"""

import argparse
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from scripts.reference.__main__ import main as write_reference
from scripts.reference.markdown import on_host

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
SECTIONS: Final = ("tutorials", "how-to", "reference", "explanation", "adr")
LATEST: Final = "latest"
"""The folder that has the newest release, so that links from other places stay valid."""

_LINK: Final = re.compile(r"(\[[^\]\n]*\]\()([^)\s#]+)(#[^)\s]*)?\)")
_ENTRY: Final = re.compile(r"^(?:[-*]|\d+\.|\|) +(?:\|)?\[([^\]]+)\]\(([\w./-]+\.md)\)")


class Listed(NamedTuple):
    """A page as the index of its section lists it: heading above it, title and file."""

    heading: str
    title: str
    file: str


def build(into: Path, name: str, work: Path, reference: Path | None = None) -> Path:
    """Build the version `name` into a folder of `into`, and return this folder. A warning of Zensical is an error.

    `reference` is a folder with generated pages; without it, they are generated.
    """
    pages = work / "docs"
    shutil.copytree(DOCS, pages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.yaml"))
    if reference is None:
        write_reference([str(pages / "reference")])
    else:
        shutil.copytree(reference, pages / "reference", dirs_exist_ok=True)
    for page in sorted(pages.rglob("*.md")):
        page.write_text(_on_site(page.read_text(encoding="utf-8"), page.relative_to(pages)), encoding="utf-8")
    site = into / name
    # A loader for this file alone would have to know the tags that name Python objects.
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (work / "mkdocs.yml").write_text(
        f"{configuration}\n{yaml.safe_dump({'docs_dir': 'docs', 'site_dir': 'built', 'nav': navigation(pages)})}",
        encoding="utf-8",
    )
    zensical = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean", "-f", "mkdocs.yml"]
    done = subprocess.run(zensical, cwd=work, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    if done.returncode:
        report = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
        raise SystemExit(f"{report.partition('Traceback')[0].rstrip()}\nscripts/docs: the site has warnings")
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(work / "built", site)
    _write_markdown(pages, site)
    return site


def _on_site(text: str, page: Path) -> str:
    """Return a page with links to files of the repository as links to the code host."""

    def replaced(match: re.Match[str]) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"\w+:", target):
            return match[0]
        path = os.path.normpath(DOCS / page.parent / target)
        if Path(path).is_relative_to(DOCS):
            return match[0]
        if not Path(path).exists():
            raise SystemExit(f"docs/{page}: {target} does not exist")
        return f"{opening}{on_host(Path(path).relative_to(ROOT), anchor)})"

    return _LINK.sub(replaced, text)


def _setting(name: str) -> str:
    found = re.search(rf"^{name}: (.+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"mkdocs.yml: `{name}` is missing")
    return found[1]


def listed(pages: Path, section: str) -> Iterator[Listed]:
    """Yield the pages that the index of a section lists, in order. A page that it does not list is an error."""
    heading, files = "", {"index.md"}
    for line in (pages / section / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif (match := _ENTRY.match(line)) and "/" not in match[2]:
            files.add(match[2])
            yield Listed(heading, match[1], match[2])
    if forgotten := sorted({page.name for page in (pages / section).glob("*.md")} - files):
        raise SystemExit(f"docs/{section}/index.md: does not list {', '.join(forgotten)}")


def navigation(pages: Path) -> list[Any]:
    """Return the site's navigation: a tab for each section, with the headings of its index as groups."""
    result: list[Any] = [{"Home": "index.md"}]
    for section in SECTIONS:
        title = (pages / section / "index.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        entries: list[Any] = [f"{section}/index.md"]
        groups: dict[str, list[Any]] = {}
        for page in listed(pages, section):
            if page.heading and page.heading not in groups:
                entries.append({page.heading: groups.setdefault(page.heading, [])})
            group = groups[page.heading] if page.heading else entries
            group.append({page.title: f"{section}/{page.file}"})
        result.append({title: entries})
    return result


def _write_markdown(pages: Path, site: Path) -> None:
    """Write the Markdown of each page beside it as index.md, and the list of all pages as llms.txt."""
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages)
        folder = site / name.parent if name.name == "index.md" else site / name.with_suffix("")
        (folder / "index.md").write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    url = _setting("site_url")
    lines = [f"# {_setting('site_name')}", "", f"> {_setting('site_description')}", ""]
    for section in SECTIONS:
        lines += [f"## {section}", ""]
        lines += [f"- [{it.title}]({url}{section}/{it.file[:-3]}/index.md)" for it in listed(pages, section)]
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def add_version(into: Path, added: str) -> None:
    """List a version in versions.json as the newest, copy it to `latest`, and lead the site's address there."""
    file = into / "versions.json"
    versions = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    names = [entry["version"] for entry in versions if entry["version"] != added]
    names.append(added)
    names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    entries = [{"version": name, "title": name, "aliases": [LATEST] if name == names[0] else []} for name in names]
    file.write_text(json.dumps(entries, indent=2), encoding="utf-8")
    shutil.rmtree(into / LATEST, ignore_errors=True)
    shutil.copytree(into / names[0], into / LATEST)
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={LATEST}/"><a href="{LATEST}/">Documentation</a>'
    (into / "index.html").write_text(page, encoding="utf-8")


def main() -> int:
    """Build the site, and show it if `--serve` is given."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the site of the documentation.")
    parser.add_argument("--version", default=version("tool-pdp"), help="the version that the pages describe")
    parser.add_argument("--strict", action="store_true", help="fail on warnings, which is the default")
    parser.add_argument("--into", type=Path, default=ROOT / "site", help="the folder of the site")
    parser.add_argument("--serve", action="store_true", help="show the site on http://127.0.0.1:8000/")
    options = parser.parse_args()
    work = options.into.with_name(f".{options.into.name}-work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        build(options.into, options.version, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    add_version(options.into, options.version)
    print(f"Built {options.into / options.version}")
    if options.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=options.into)
        print("http://127.0.0.1:8000/ - Ctrl-C ends it")
        http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
