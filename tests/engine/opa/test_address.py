from __future__ import annotations

import pytest

from pdp.engine.opa.address import Address, parse_address
from pdp.errors import UsageError

KINDS = "(give http://HOST:PORT, https://HOST:PORT or unix:///PATH)"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:8181", (None, "localhost", 8181, False)),
        ("http://opa-1.internal/", (None, "opa-1.internal", 80, False)),
        ("https://10.0.0.1", (None, "10.0.0.1", 443, True)),
        ("https://opa:80", (None, "opa", 80, True)),
        ("http://[::1]:8181", (None, "::1", 8181, False)),
        ("unix:///run/opa.sock", ("/run/opa.sock", "localhost", 0, False)),
    ],
)
def test_addresses(url: str, address: tuple[str | None, str, int, bool]) -> None:
    assert parse_address(url) == Address(url.rstrip("/"), *address)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", f"OPA's address '' has an unknown scheme {KINDS}"),
        ("localhost:8181", f"OPA's address 'localhost:8181' has an unknown scheme {KINDS}"),
        ("ftp://opa", f"OPA's address 'ftp://opa' has an unknown scheme {KINDS}"),
        ("http://", f"OPA's address 'http://' has no valid host or port {KINDS}"),
        ("http://opa:0", f"OPA's address 'http://opa:0' has no valid host or port {KINDS}"),
        ("http://a b", f"OPA's address 'http://a b' has no valid host or port {KINDS}"),
        ("http://opa:99999", f"OPA's address 'http://opa:99999' is not a URL: Port out of range 0-65535 {KINDS}"),
        ("http://[::1", f"OPA's address 'http://[::1' is not a URL: Invalid IPv6 URL {KINDS}"),
        ("http://opa/v1/data", f"OPA's address 'http://opa/v1/data' has a path {KINDS}"),
        ("http://opa?a=b", f"OPA's address 'http://opa?a=b' has parts that it must not have {KINDS}"),
        ("http://opa#", f"OPA's address 'http://opa#' has parts that it must not have {KINDS}"),
        ("http://opa\r\nX: y", f"OPA's address 'http://opa\\r\\nX: y' has parts that it must not have {KINDS}"),
        ("http://me:secret@opa", "OPA's address holds a user or a password (give a token instead)"),
        ("http://me:secret@opa?a=b", "OPA's address holds a user or a password (give a token instead)"),
        ("unix://run/opa.sock", f"OPA's address 'unix://run/opa.sock' names no absolute path of a socket {KINDS}"),
        ("unix:///run/", f"OPA's address 'unix:///run/' names no absolute path of a socket {KINDS}"),
        (
            "unix:///" + "x" * 103,
            f"OPA's address 'unix:///{'x' * 92}' is longer than a socket's path may be (at most 103 bytes)",
        ),
    ],
)
def test_anything_else_is_a_usage_error_that_says_what_to_give(url: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)

    assert str(caught.value) == message
