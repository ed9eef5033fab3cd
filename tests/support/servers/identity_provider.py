"""An OpenID Connect provider: keys, discovery, and the authorization code flow with PKCE for people who just agree."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jws
from joserfc.jwk import ECKey, Key, RSAKey

KEYS = "/keys"
DISCOVERY = "/.well-known/openid-configuration"
FIRST, SECOND = RSAKey.generate_key(2048, {"kid": "first"}), ECKey.generate_key("P-256", {"kid": "second"})
NOW = int(time.time())
CLIENT, SECRET = "pdp-console", "s3cret: äöü"


class Provider:
    """A provider at `url`.

    `answers` maps paths to statuses and bodies, and `asked` lists the requested paths. `access` and `identity` change
    the claims of the access tokens and ID tokens that people get. `sent` has the parameters of each authorization.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.url = f"http://{host}:{port}"
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.access: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.sent: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}
        self.publish(FIRST)
        urls = {name: f"{self.url}/{name}" for name in ("authorization", "token")}
        self.put(DISCOVERY, {"issuer": self.url, **{f"{name}_endpoint": url for name, url in urls.items()}})

    def put(self, path: str, value: object, status: int = 200) -> None:
        self.answers[path] = (status, json.dumps(value).encode())

    def publish(self, *keys: Key, **fields: Any) -> None:
        self.put(KEYS, {"keys": [{**key.as_dict(private=False), **fields} for key in keys]})

    def settings(self, **changes: Any) -> dict[str, Any]:
        return {
            "issuer": self.url, "audience": "pdp", "jwks_url": self.url + KEYS,
            "scopes": {"wires": ("propose", "decide"), "audit": ("audit",)},
            "claims": {"roles": "/realm_access/roles", "emts": "https://example.com/emts", "sub": "email"}, **changes,
        }  # fmt: skip

    def claims(self, **changes: Any) -> dict[str, Any]:
        stated = {
            "iss": self.url, "aud": ["pdp", "else"], "sub": "officer-123", "iat": NOW, "exp": NOW + 86_400,
            "azp": "agent", "jti": "t-1", "scope": "openid wires", "email": "chief@example.com",
            "realm_access": {"roles": ["payments.officer"]}, "https://example.com/emts": {"payments.lookup": True},
            **changes,
        }  # fmt: skip
        return {name: value for name, value in stated.items() if value is not None}

    def token(self, key: Key = FIRST, header: dict[str, Any] | None = None, **changes: Any) -> str:
        return signed(self.claims(**changes), key, header)

    def authorized(self, sent: dict[str, str]) -> str:
        """Return the address to which the browser goes after the person has agreed."""
        self.sent.append(sent)
        code = f"code-{len(self.sent)}"
        self._codes[code] = sent
        return f"{sent['redirect_uri']}?{urlencode({'code': code, 'state': sent['state'], 'iss': self.url})}"

    def exchanged(self, form: dict[str, str], authorization: str | None) -> tuple[int, bytes]:
        """Return the tokens for a code, which works once, with the client's secret and the verifier."""
        sent = self._codes.pop(form.get("code", ""), {})
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        client = base64.b64encode(urlencode({CLIENT: SECRET}).replace("+", "%20").replace("=", ":").encode()).decode()
        is_good = (
            authorization == f"Basic {client}"
            and sent.get("code_challenge") == challenge.decode()
            and (sent["code_challenge_method"], sent["redirect_uri"]) == ("S256", form["redirect_uri"])
        )
        if not is_good:
            return 400, b'{"error": "invalid_grant"}'
        now = int(time.time())
        person = {"azp": CLIENT, "exp": now + 300, "scope": "wires audit"}
        stated = {"nonce": sent["nonce"], "auth_time": now, **self.identity}
        identity = {"iss": self.url, "aud": CLIENT, "sub": "officer-123", "iat": now, "exp": now + 60, **stated}
        header = identity.pop("header", {"typ": "JWT"})
        tokens = {
            "access_token": self.token(**{**person, **self.access}),
            "id_token": signed({name: value for name, value in identity.items() if value is not None}, FIRST, header),
        }
        return 200, json.dumps(tokens).encode()


def signed(claims: dict[str, Any], key: Key = FIRST, header: dict[str, Any] | None = None) -> str:
    """Return a JWT with these claims. A header field that is None is left out."""
    protected = {"alg": "RS256", "kid": "first", "typ": "at+jwt", **(header or {})}
    return jws.serialize_compact(
        {name: value for name, value in protected.items() if value is not None},
        json.dumps(claims), key, algorithms=["RS256", "RS512", "PS256", "ES256", "HS256"],
    )  # fmt: skip


@contextmanager
def identity_provider(host: str = "127.0.0.1") -> Iterator[Provider]:
    """Run a provider on a free port. To a browser, `localhost` is another site than the service."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            status, body = made.answers.get(self.path, (404, b""))
            target = made.url + KEYS
            if self.path.startswith("/authorization?"):
                status, target = 302, agreed(made, self.path)
            self.send_response(status)
            self.send_header("Location", target)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            made.asked.append(self.path)
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            exchanged = made.exchanged(dict(parse_qsl(form)), self.headers["Authorization"])
            status, body = made.answers.get(self.path, exchanged)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        made = Provider(server.server_port, host)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def agreed(provider: Provider, address: str) -> str:
    """Return the address to which the provider sends a person who opens `address` and agrees."""
    url = urlsplit(address)
    assert address.removeprefix(provider.url).startswith("/authorization?")
    return provider.authorized(dict(parse_qsl(url.query)))
