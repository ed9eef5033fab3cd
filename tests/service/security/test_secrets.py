"""A service process never writes tokens into logs, stores, output or answers."""

from pathlib import Path

import pytest

from pdp.service.security.principal import Scope
from tests.support import PATIENCE
from tests.support.service import running_service


@pytest.mark.process
def test_tokens_are_never_logged_stored_or_returned(tmp_path: Path) -> None:
    with running_service(tmp_path, log_level="debug") as running:
        client = running.client()
        client.headers["X-Request-ID"] = "request-1"
        token = client.headers["Authorization"].removeprefix("Bearer ")
        wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
        made = client.post("/v1/tokens", json={"name": "ci", "scopes": [scope.value for scope in Scope]})
        session = client.post("/v1/session")
        secrets = [token, wrong, made.json()["token"], session.cookies["pdp_session"]]
        answers = [
            client.get(f"/v1/approvals?access_token={token}"),
            client.get(f"/v1/tokens/{token}"),
            client.delete(f"/v1/tokens/{token}"),
            client.get("/v1/tokens"),
            client.get("/v1/audit"),
            client.get("/metrics"),
            client.get("/v1/manifest", headers={"Authorization": f"Bearer {wrong}"}),
            client.get("/v1/manifest", headers={"Authorization": f"Basic {token}"}),
            client.get("/v1/manifest", headers={"Authorization": f"Bearer {token} {token}"}),
            client.post("/v1/tokens", json={"name": "ci", "scopes": [], "token": token}),
            client.post("/v1/proposals", json={"proposal": {"tool": "no_such", "arguments": {"a": 1}}}),
            client.post("/v1/proposals", content=b"{", headers={"Content-Type": "application/json"}),
            client.delete("/v1/session"),
        ]
        running.process.terminate()
        assert running.process.wait(PATIENCE) == 0
        written = running.log.read_bytes()
        stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.name.startswith("store.db"))
        # Read the output only after the process has ended, so that nothing is missing.
        assert running.process.stdout is not None
        printed = running.process.stdout.read()

    answered = [answer.text + str(answer.headers) for answer in answers]
    # Requests without a bearer token are authenticated by the browser's cookie.
    statuses = [answer.status_code for answer in answers]
    assert statuses == [400, 405, 404, 200, 200, 200, 401, 200, 401, 400, 200, 400, 204]
    assert b"request-1" in written
    assert token[4:20].encode() in stored
    for secret in (secret[20:] for secret in secrets):
        assert (secret.encode() in written, secret.encode() in stored, secret in printed) == (False, False, False)
        assert [answer for answer in answered if secret in answer] == []
