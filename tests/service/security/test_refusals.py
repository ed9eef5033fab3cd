"""The service logs why it refuses a token, and never the token."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from pdp.service.telemetry import JsonLines, RefusedTokens
from tests.service.test_telemetry import samples
from tests.support.servers.identity_provider import KEYS, NOW, identity_provider
from tests.support.service import ServedApp, service


async def refused(served: ServedApp, token: str, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Send a token, and return the fields of the one line in the log."""
    caplog.clear()
    await served.client(token=token).get("/v1/audit", headers={"X-Request-ID": "the-id"})
    [line] = [each for each in caplog.records if each.name == "pdp.service.tokens"]
    text = JsonLines().format(line)
    assert not [part for part in token.split(".") if len(part) > 30 and part[20:] in text]
    assert (line.levelname, vars(line)["request_id"]) == ("WARNING", "the-id")
    names = ("reason", "issuer", "kid", "typ", "claim", "token_id", "session")
    return {name: vars(line)[name] for name in names if name in vars(line)}


async def test_each_refused_token_is_logged_once_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with identity_provider() as provider:
        entries = (provider.settings(), provider.settings(audience="other-service", scopes={}))
        async with service(tmp_path, oidc=entries) as served:
            tokens, auditor = served.service.tokens, served.client(["audit"])
            before = await samples(auditor)
            revoked = served.token()
            await tokens.revoke(revoked[4:20], "default")
            cookie = (await auditor.post("/v1/session")).cookies["pdp_session"]
            about = {"issuer": provider.url, "typ": "at+jwt", "kid": "first"}
            expected = {
                "x.y.z": {"reason": "malformed"},
                f"pdp_{'0' * 59}": {"reason": "unknown", "token_id": "0" * 16},
                revoked: {"reason": "revoked", "token_id": revoked[4:20]},
                cookie: {"reason": "misused", "session": "browser session"},
                provider.token(iss="https://other.example"): {"reason": "wrong_issuer"},
                provider.token(header={"typ": "dpop+jwt"}): {**about, "reason": "wrong_header", "typ": "dpop+jwt"},
                provider.token(header={"kid": "a b\n"}): {
                    "reason": "unknown_key",
                    "issuer": provider.url,
                    "typ": "at+jwt",
                },
                provider.token(header={"kid": "second"}): {**about, "reason": "unknown_key", "kid": "second"},
                provider.token(RSAKey.generate_key(2048, {"kid": "first"})): {**about, "reason": "bad_signature"},
                provider.token(exp=NOW - 3600): {**about, "reason": "expired", "claim": "exp"},
                provider.token(iat=NOW + 3600): {**about, "reason": "clock", "claim": "iat"},
                provider.token(aud="third"): {**about, "reason": "wrong_audience", "claim": "aud"},
                provider.token(sub="officer\u202e"): {"reason": "invalid_claim", "issuer": provider.url},
                provider.token(scope="none"): {"reason": "no_scope", "issuer": provider.url},
            }
            assert {token: await refused(served, token, caplog) for token in expected} == expected
            provider.answers.pop(KEYS)
            for knows in served.service.authenticators[1:]:
                knows.keys._fetched_at = float("-inf")  # type: ignore[attr-defined]
            assert (await refused(served, provider.token(), caplog))["reason"] == "provider_down"
            after = await samples(auditor)

    counts = {name[1]: count for name, count in after.items() if name[0] == "pdp_token_refusals_total"}
    counts = {name: count - before.get(("pdp_token_refusals_total", name), 0) for name, count in counts.items()}
    reasons = [each["reason"] for each in expected.values()] + ["provider_down"]
    assert counts == {reason: reasons.count(reason) for reason in counts}


def test_log_of_refused_tokens_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RefusedTokens()
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            log.report({"reason": "malformed"})
        assert caplog.messages == ["refused a token: malformed"] * 20
        caplog.clear()
        later = time.monotonic() + 61
        monkeypatch.setattr(time, "monotonic", lambda: later)
        log.report({"reason": "expired"})
    assert [(vars(each)["reason"], vars(each)["left_out"]) for each in caplog.records] == [("expired", 980)]
