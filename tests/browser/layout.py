"""Checks of a page in both colour schemes, on a telephone and on a wide screen, and on paper."""

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

WIDTHS = (360, 1120, 1440)  # From 1,120 pixels on, lists are tables.
AXE = {("light", 1440), ("dark", 360)}
"""The combinations in which axe-core runs, because it takes half a second."""


def check_layout(page: Page, pictures: Path | None, name: str) -> None:
    """Check that a page needs no scrolling to the side and that axe-core finds nothing.

    Write a picture of each combination to the folder `pictures`, if there is one.
    """
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            wide, high = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
            if pictures is not None:
                page.set_viewport_size({"width": width, "height": high})
                page.screenshot(path=pictures / f"{name}-{scheme}-{width}.png")
            assert wide <= width
            if (scheme, width) in AXE:
                assert not findings(page)
    page.emulate_media(media="print")
    expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.emulate_media(media="screen")


def findings(page: Page) -> list[str]:
    """Return what axe-core finds on a page: each rule with the elements that break it."""
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {[node['html'] for node in rule['nodes']]}" for rule in found]
