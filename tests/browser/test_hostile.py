"""Hostile text in every field is shown as text: no script runs, no element appears, and nothing stays invisible."""

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import DECISIONS, INBOX, MOST_BYTES, Site
from tests.support.payments import ARGUMENTS, session
from tests.support.service import APPROVER, OFFICER

TEXTS = {
    "elements": (
        "<script id=injected>alert(1)</script>'><img id=injected src=x onerror=alert(1)>"
        "</pre><svg id=injected onload=alert(1)><style>*{display:none}</style>"
    ),
    "attributes": (
        '" autofocus onfocus=\'alert(1)\' id="injected" x="javascript:alert(1)//https://attacker.example/'
        "<!--</title></textarea><iframe id=injected srcdoc='<script>alert(1)</script>'>"
    ),
    "templates": "{{ 7 * 7 }}{% raw %}${7*7}#{7*7}{0.__class__}%(x)s&lt;b id=injected&gt;&#60;script&#62;&amp;",
    "marks": (
        "pay \u202e144-emca\u202c \u2066x\u2069 bene\u200b-acme\u00ad\ufeff\u2060\U000e0041 "
        "\x1b[31m\x07\x7f\x85\r\u2028"
    ),
    "long": "x" * 80_000,
}
MARKED = (
    0x202E, 0x202C, 0x2066, 0x2069, 0x200B, 0xAD, 0xFEFF, 0x2060, 0xE0041, 0x1B, 0x7, 0x7F, 0x85, 0xD, 0x2028,
)  # fmt: skip
"""The code points of `marks` that pages must show as marks."""


def check(page: Page, address: str) -> None:
    """Open a page with hostile text, and check its size and its elements."""
    answer = page.goto(address)
    assert answer is not None
    assert len(answer.body()) <= MOST_BYTES
    check_elements(page)


def check_elements(page: Page) -> None:
    """Check that hostile text has added no element and that the page is not wider than a telephone."""
    # A page can be visible before its style sheet has arrived, and is wider then.
    page.wait_for_load_state()
    expect(page.locator("#injected")).to_have_count(0)
    expect(page.locator("script, iframe, img, object, embed, style, base")).to_have_count(1)
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_text_in_approvals_is_shown_as_text(site: Site, name: str) -> None:
    text = TEXTS[name]
    short = text[:200]
    arguments = dict.fromkeys(("beneficiary_id", "source_account", "reference"), text)
    facts = {"beneficiary_id": text, "sanctions_status": "clear"}
    # The contract rejects subjects that can be mistaken for another one.
    subject = "officer" if name == "marks" else short
    claims = {**OFFICER, "sub": subject}
    approval = site.asked(arguments, facts=facts, run_id=short, purpose=short, claims=claims)
    page = site.signed_in({**APPROVER, "sub": f"{subject}2"})
    check(page, f"{INBOX}/{approval.id}")
    shown = page.locator("main").inner_text()
    for mark in [f"U+{code:04X}" for code in MARKED] if name == "marks" else [text[:1000]]:
        assert mark in shown

    check(page, INBOX)
    check(page, f"{INBOX}?run_id={quote(short)}&tool={quote(short)}&subject={quote(short)}")
    site.other.approvals.deny(approval.id, APPROVER, why=short)
    check(page, f"{INBOX}/{approval.id}")
    check(page, f"{INBOX}?state=denied")

    site.other.pep.call({"tool": text, "arguments": {text: text}}, session(run_id=short))
    event, run = site.other.events()[-1][0], quote(short, safe="")
    for address in (f"{DECISIONS}/{event}", f"{DECISIONS}?run_id={run}", f"/console/runs?id={run}"):
        check(page, address)


def test_pages_stay_small_with_many_long_texts(site: Site) -> None:
    text = '"' * 3000
    facts = {"beneficiary_id": text, "sanctions_status": "clear"}
    approvals = [site.asked({"beneficiary_id": text}, facts=facts, run_id=text[:250]) for _ in range(60)]
    for approval in approvals[:30]:
        site.other.approvals.deny(approval.id, APPROVER, why=text)
    page = site.signed_in()
    run = f"/console/runs?id={quote(text[:250])}"
    for address in (INBOX, f"{INBOX}?state=denied", f"{INBOX}/{approvals[0].id}", DECISIONS, run):
        check(page, address)
    for approval in approvals[30:]:
        site.other.approvals.deny(approval.id, APPROVER)


@pytest.mark.parametrize("field", ["arguments", "session", "entry", "concern"])
def test_hostile_text_in_the_playground_is_shown_as_text(site: Site, field: str) -> None:
    text = "\n".join(text[:1000] for text in TEXTS.values())
    wrong = {
        "arguments": json.dumps({**ARGUMENTS, "reference": text, text: text}),
        "session": json.dumps({"claims": {**OFFICER, "sub": text}, text: text}),
        "entry": text,
        "concern": f"package custom.concerns.{text}",
    }
    page = site.signed_in(java_script_enabled=False)
    page.goto("/console/play")
    page.locator(f"textarea[name={field}]").fill(wrong[field])
    page.get_by_role("button", name="Decide").first.click()
    expect(page.locator("#result").get_by_role("alert").or_(page.locator(".tag.REJECTED"))).to_be_visible()
    check_elements(page)
