"""Normal forms of values, values found inside texts, and values that the user wrote in the prompt."""

import pytest

from pdp.ledger.values import Prompt, host_of, leaf_values, links, names_something, normal, site_of, within


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("\uff22\uff4f\uff42", "bob"),
        ("ﬁle.txt", "FILE.TXT"),
        ("  Bob \n Smith", "bob smith"),
        ("STRASSE", "straße"),
        ("1,200.50", 1200.5),
        ("1'200'000", 1_200_000),
        ("20.0", 20),
        (20.0, 20),
        (-0.0, 0),
        ("https://www.Example.com/a/", "example.com/a"),
        ("HTTPS://Example.com/A?b=C", "example.com/A?b=C"),
        ("http://example.com", "www.example.com/"),
        ("GB29 NWBK 6016 1331 9268 19", "gb29nwbk60161331926819"),
        ("#general", "General"),
        ("@Bob_Smith", "bob_smith"),
        ("#W2291-7", "W2291-7"),
        ("#4711", 4711),
    ],
)
def test_different_spellings_of_a_value_have_the_same_normal_form(first: object, second: object) -> None:
    assert normal(first) == normal(second) != ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0049170", 49170),  # A text keeps its leading zeros, because the text may be a phone number.
        ("bob%40example.com", "bob@example.com"),
        ("pay@stra\u00dfe.example", "pay@strasse.example"),
        ("Ym9i", "bob"),
        ("1.200,50", "1,200.50"),
        ("12", "1 2 "),
        ("https://example.com/a", "https://example.com/b"),
        ("https://example.com/a", "https://example.com/A"),
        ("example.com/a", "example.com/A"),
        ("https://example.com?a", "https://example.com?A"),
        ("https://example.com/a", "https://example.com/\uff41"),
        ("1" * 40, 1e39),
        ("1" * 30, "1" * 29 + "2"),
        ("@example.com", "example.com"),
        ("##general", "general"),
        ("C#", "C"),
    ],
)
def test_different_values_have_different_normal_forms(first: object, second: object) -> None:
    assert normal(first) != normal(second)


@pytest.mark.parametrize("value", [None, True, False, "", "  ", "x" * 257])
def test_normal_form_of_null_booleans_and_blanks_is_empty(value: object) -> None:
    assert normal(value) == ""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("write to Bob <bob@example.com>.", ["bob@example.com"]),
        ("see https://www.example.com/a?b=1.", ["example.com/a?b=1", "example.com"]),
        ("go to shop.example.org now", ["shop.example.org"]),
        ("IBAN GB29NWBK60161331926819, please", ["gb29nwbk60161331926819"]),
        ("invoice INV-2291 over 1,200.50 euros, 12 pages", ["inv-2291", "1200.5"]),
        ("ratio 3:4, version 1.2.3, 5/6", []),
        ("nothing here", []),
        ("to=INV-2291&sum=1417.20", ["inv-2291", "1417.2"]),
    ],
)
def test_within_returns_links_addresses_accounts_and_references_inside_a_text(text: str, values: list[str]) -> None:
    assert list(dict.fromkeys(within(text))) == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.example/x, www.b.example; a.example/x and c.example/y?z=1.",
         ["https://a.example/x", "www.b.example", "c.example/y?z=1"]),
        ("mailto:eve@evil.example (Eve@evil.example)", ["eve@evil.example"]),
        ("to GB29 NWBK 6016 1331 9268 19, not GB29NWBK60161331926819", ["GB29 NWBK 6016 1331 9268 19"]),
        ("10.0.0.1:80/Secret or http://10.0.0.1:80/Secret, not 10.0.0.1:80/secret",
         ["http://10.0.0.1:80/Secret", "10.0.0.1:80/secret"]),
        ("Version 1.2.3.4 of 3 June, 12.50 euros, INV-2291, at 13:00", []),
        ("bill.txt, March.2025.PDF; not setup.py, bill.txt.example or a.example/bill.txt",
         ["setup.py", "bill.txt.example", "a.example/bill.txt"]),
    ],
)  # fmt: skip
def test_links_returns_each_link_of_a_text_once_and_unchanged(text: str, expected: list[str]) -> None:
    assert links(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\uff45\uff56\uff49\uff4c\uff0e\uff43\uff4f\uff4d/pay", "evil.com/pay"),
        ("ev\u00adil.\u200bcom", "evil.com"),
        ("\u202eevil.com", "evil.com"),
        ("evil\u3002com/pay", "evil.com/pay"),
        ("\u4f8b\u5b50\uff61\u4e2d\u56fd/pay", "\u4f8b\u5b50.\u4e2d\u56fd/pay"),
        ("\u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444", "\u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444"),
        ("\u0909\u0926\u093e.\u092d\u093e\u0930\u0924", "\u0909\u0926\u093e.\u092d\u093e\u0930\u0924"),
        ("xn--e1afmkfd.xn--p1ai/pay", "xn--e1afmkfd.xn--p1ai/pay"),
        ("evil%2Ecom/pay", "evil.com/pay"),
        ("evil&#46;com", "evil.com"),
        ("evil%252ecom/pay", "evil.com/pay"),
        ("evil<b></b>.com/pay", "evil.com/pay"),
        ("evil.<!-- - -->com/pay", "evil.com/pay"),
        ("DE89 <b>3704</b>    0044  0532 0130 00", "DE89 3704 0044 0532 0130 00"),
        ("https://bank.com@evil.com/x", "https://bank.com@evil.com/x"),
        ("user:pass@evil.com:8443", "pass@evil.com"),
        ("http://3232235777/", "http://3232235777/"),
        ("3232235777/pay", "3232235777/pay"),
        ("0xC0A80001/pay", "0xC0A80001/pay"),
        ("0300.0250.0.1:80", "0300.0250.0.1:80"),
        ("http://[2001:db8::1]/x", "http://[2001:db8::1]/x"),
        ("[2001:db8::1]/pay", "[2001:db8::1]/pay"),
        ("http:evil/pay", "http:evil/pay"),
        ('"x y"@evil.com', "evil.com"),
        ("x" * 70 + "@evil.com", "@evil.com"),
        ("eve\uff20evil.com", "eve@evil.com"),
        ("eve@[10.0.0.1]", "eve@[10.0.0.1]"),
        ("see\u2026evil.com", "evil.com"),
        ("_evil.com_", "_evil.com"),
        ("-" * 70 + "evil.com-", "-" * 70 + "evil.com"),
        ("a.b.c.d.e.f.g.h.i.j.k.evil.com", "a.b.c.d.e.f.g.h.i.j.k.evil.com"),
        ("GB29\u00a0NWBK\u00a06016\u00a01331\u00a09268\u00a019", "GB29 NWBK 6016 1331 9268 19"),
        ("GB29-NWBK-6016-1331-9268-19", "GB29-NWBK-6016-1331-9268-19"),
        ("GB29NWBK 60-16-13 31926819", "GB29NWBK60161331926819"),
        ("on 12 May G B 2 9  NWBK\n601613 31926819 now", "GB29NWBK60161331926819"),
        ("GB\u0662\u0669NWBK\u0666\u0660\u0661\u0666\u0661\u0663\u0663\u0661\u0669\u0662\u0666\u0668\u0661\u0669",
         "GB29NWBK60161331926819"),
        ("\u8bf7\u4ed8GB29NWBK60161331926819\u8c22", "GB29NWBK60161331926819"),
    ],
)  # fmt: skip
def test_links_finds_disguised_and_international_spellings(text: str, expected: str) -> None:
    assert expected in links(text)


@pytest.mark.parametrize(
    "text",
    [
        "\u3053\u308c\u306f\u30da\u30f3\u3002\u3042\u308c\u306f\u672c\u3002", "\u4f60\u597d\u3002Email me\u3002",
        "rated 4.5/5, 3/4 or 3.14/2", "FY24 plan with many more", "fy24-plan-with-many",
        "on 12 May 2024 at 10:30 we met, e.g. in room 12.3", "case 20240517/03", "Tom &amp; Bob: 100%20",
        "call +49 170 1234567 on 12.05.2024 about order 4711-0815", "from 2024-05-12T10:00:00 to 11:00:00",
    ],
)  # fmt: skip
def test_links_ignores_ordinary_text(text: str) -> None:
    assert links(text) == []


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("example.com/a@home.example", "example.com"),
        ("example.com?u=me@home.example", "example.com"),
        ("example.com\\@home.example", "example.com"),
        ("home.example@evil.example/x", "evil.example"),
        ("ftp://evil.example/home.example", "evil.example"),
        ("home.example:8080/x", "home.example"),
        ("bob@home.example", "home.example"),
        ("eve@evil.example, bob@home.example", ""),
        ("eve@evil.example bob@home.example", ""),
    ],
)
def test_host_of_returns_the_real_host(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("https://Good.example/a/b?q=1#top", "https://good.example"),
        ("https://good.example:8443/", "https://good.example:8443"),
        ("good.example/search?q=a+b&x=@c", "good.example"),
        ("http://xn--gd-eka.example", "http://xn--gd-eka.example"),
        ("https://good.example@evil.example/", ""),
        ("https://good.example:80@evil.example/", ""),
        ("https://good.example\\@evil.example", ""),
        ("https://good.example/\t/evil.example", ""),
        ("https://good.example?@evil.example", ""),
        ("https://good.example#@evil.example", ""),
        ("https://good.example evil.example", ""),
        ("https://good.example\n", ""),
        ("https://g\u00f6od.example/", ""),
        ("https://good\uff0eexample/", ""),
        ("https://good.example\u3002evil.example/", ""),
        ("https://good.example./", ""),
        ("https:good.example", ""),
        ("https:///good.example", ""),
        ("//good.example/", ""),
        ("ftp://good.example/", ""),
        ("https://127.0.0.1/", ""),
        ("https://localhost/", ""),
        ("javascript:alert(1)", ""),
        ("", ""),
    ],
)
def test_site_of_is_empty_unless_all_programs_read_the_same_host(address: str, site: str) -> None:
    assert site_of(address) == site


_PROMPT = Prompt([
    "Pay $1,200.50 to Bob Smith (bob@example.com) at 13:00, read 'bill-december.txt' on https://www.site.com/info.",
    "From January 11th to 15 February 2025, at 10 am; then 2024-05-20, 14:30.",
    "Send 50 to me, ask our-shop.com.They know; by 5/22, or 30/6/2026, not 1/2/3.",
])  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "Bob Smith", "smith", "bob@example.com", 1200.5, "1,200.50", "bill-december.txt", "https://site.com/info",
        "2025-01-11", "2025-02-15", "2024-05-20 14:30", "2025-01-11T10:00:00", "2025-05-22",
        "2026-06-30", "2024-05-20T14:30:00.000Z", "13:00", "10:00", "10:00:00", "10 AM", "2:30 pm", 50,
        "our-shop.com", "I",
    ],
)  # fmt: skip
def test_says_is_true_for_values_that_the_user_wrote_in_the_prompt(value: str | float) -> None:
    assert _PROMPT.says(normal(value)) is (value != "I")


@pytest.mark.parametrize(
    "value",
    [
        "13", 13, "bill", "december", "example.com", "ob smith", "bob@example", "site", "200.5", 1200, "00",
        "2024-02-15", "2024-05-20 14:31", "2025-05-11", "2025-06-30", "2003-01-02", "10:30",
        "10 pm", "14:30:10", "2024-05-20T14:30:01Z", "", "eve", "bob%20smith",
        "site.com/info/x", "mith (bob",
    ],
)  # fmt: skip
def test_says_is_false_for_parts_of_words_and_values_missing_in_the_prompt(value: str | float) -> None:
    assert not _PROMPT.says(normal(value))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("bob", True),
        (1200.5, True),
        (50, False),
        ("me", False),
        (999.99, False),
        ("--1234", True),
        ("\u1369" * 4, True),
    ],
)
def test_only_distinctive_values_can_identify_an_object(value: str | float, names: bool) -> None:
    assert names_something(normal(value)) is names
    assert _PROMPT.names(normal(value)) is (names and _PROMPT.says(normal(value)))


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("bill-december.txt", True), ("Bill-december.txt", False), ("Smith", False), ("2025-02-15T10:00:00", True),
        ("1200", True), ("'bill-december.txt'", False), ("read 'bill-december.txt", False),
    ],
)  # fmt: skip
def test_spells_is_true_only_for_exact_distinctive_or_quoted_texts_of_the_prompt(text: str, spelled: bool) -> None:
    assert _PROMPT.spells(text) is spelled


def test_hidden_characters_of_a_prompt_are_ignored() -> None:
    assert Prompt(["pay on acme\u200b.example/pay"]).says("acme.example/pay")


def test_leaf_values_returns_values_with_json_pointers() -> None:
    value = {"a/b": [1, {"~": "x"}], "c": None, "d": True, "e": "", "f": " "}

    assert list(leaf_values(value)) == [("/a~1b/0", 1), ("/a~1b/1/~0", "x"), ("/f", " ")]
    assert list(leaf_values({"a": {"b/c": True}}, names={"a"})) == [("/a/b~1c", "b/c")]


@pytest.mark.parametrize(
    "text",
    [
        "a." * 500_000,
        "@" * 1_000_000,
        "a@" * 500_000,
        "1," * 500_000,
        "AB12 " * 200_000,
        "x-" * 500_000,
        "http://" * 150_000,
        "x\n" + " " * 1_000_000 + "x",
        "aa." * 300_000 + "@b",
        "0x1." * 250_000,
        "[1:" * 300_000,
    ],
    ids=["dots", "ats", "mails", "commas", "accounts", "dashes", "schemes", "blanks", "hosts", "numbers", "brackets"],
)
def test_search_for_values_ends_on_hostile_long_texts(text: str) -> None:
    assert len(set(within(text))) < 100
    assert len(links(text[:65_536])) < 100
