"""The console on the level of HTTP: sessions, rights and forms. `tests/browser` opens the pages in a browser."""

import re
from collections.abc import Iterable, Mapping
from html import unescape
from typing import Any

import httpx

from tests.support.service import APPROVER, ServedApp

ORIGIN = "http://127.0.0.1:8181"


class Visitor:
    """A person who is signed in to the console. `posted` sends a form of a page, with the page's CSRF token."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **query: Any) -> httpx.Response:
        return await self.client.get(f"/console/{path}", params=query or None)

    async def posted(
        self, path: str, fields: Mapping[str, Any] | None = None, *, page: str = "help", origin: str = ORIGIN
    ) -> httpx.Response:
        """Send a form with the CSRF token of `page`. A field with a list is sent several times."""
        token = re.search(r'name="csrf" value="([0-9a-f]+)"', (await self.get(page)).text)
        csrf = {"csrf": token[1]} if token else {}
        return await self.client.post(f"/console/{path}", data={**csrf, **(fields or {})}, headers={"Origin": origin})


async def signed_in(
    served: ServedApp,
    scopes: Iterable[str] = ("approve", "audit", "decide", "propose"),
    claims: Mapping[str, Any] = APPROVER,
    **options: Any,
) -> Visitor:
    """Sign in to the console with a new token of these scopes and claims."""
    client = served.client(token="")
    answer = await client.post(
        "/console/sign-in", data={"token": served.token(scopes, claims, **options)}, headers={"Origin": ORIGIN}
    )
    assert answer.status_code == 303, answer.text
    return Visitor(client)


def words_of(answer: httpx.Response) -> str:
    """Return the text of a page as people read it, with single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())
