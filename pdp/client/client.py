"""Requests to the decision service, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import orjson
from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay, wait_random_exponential

from pdp.client.evaluation import approval_of
from pdp.documents.arguments import Closable, checked
from pdp.errors import AnswerInvalidError, EngineError, EngineTimeoutError, RequestRefusedError, UsageError
from pdp.installed import extra
from pdp.json import JsonValueError, parse_json
from pdp.stores.approvals import Approval

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE: Final = "PDP_TOKEN"  # noqa: S105 - the variable with the token
TIMEOUT: Final = 10.0  # default seconds for one try
PATIENCE: Final = 2.0  # for how many seconds a request that does no harm twice is tried again
LONGEST_WAIT: Final = 55  # seconds that one request may wait for an approval
MAX_ANSWER: Final = 16 * 1024 * 1024  # bytes

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,8192}=*")
_MOST_PAGES: Final = 1000
_FAILED: Final = 500  # from this status on, the service could not do what it was asked
_PASSING: Final = frozenset((408, 429))
_LAST_PORT: Final = 65535
_SHOWN: Final = 300

Json = dict[str, Any]
One = TypeVar("One")
Many = TypeVar("Many")
Answer = TypeVar("Answer")


class ServiceError(EngineError):
    """The service refuses a request, with HTTP's `status` and a code of its own, such as `service.forbidden`."""

    def __init__(self, status: int, error_code: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{error_code}: {message}", hint=hint)
        self.status = status
        self.error_code = error_code


class Connection:
    """The way to a service, safe to share between threads and tasks; see `Client`.

    Its event loop is in a thread of its own. Only in a loop one deadline bounds everything: lookup, TLS, and an answer
    that drips; and all threads and loops of the application share its connections.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        with extra("client"):
            import httpx  # noqa: PLC0415 - only who asks a service needs it
        self._faults = (httpx.HTTPError, OSError)
        self._url = _service_url(url)
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {_token(token)}", "Accept-Encoding": "identity"},
            verify=ssl.create_default_context(),
            trust_env=False,  # the token goes by no proxy, as along no redirection
            timeout=None,  # noqa: S113 - each try is bounded as a whole
        )
        self._process, self._is_open, self._turn = os.getpid(), True, threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pdp-client", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Let the loop do it; EngineError after `close`, and in a forked process."""
        with self._turn:
            if self._is_open and self._process == os.getpid():
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise EngineError("the client is closed, or belongs to another process", hint="make one in this process")

    async def exchange(self, method: str, path: str, body: Any = None, *, patience: float = 0, wait: float = 0) -> Json:
        """Return the object that the service answers; an empty one where it has nothing to say.

        `patience`: for how many seconds it is tried again, where that does no harm; `wait`: seconds that the service
        is asked to wait. EngineError: refused (`ServiceError`), not there, too late, or no answer of the service.
        """
        try:
            content = None if body is None else orjson.dumps(body)
        except (TypeError, ValueError) as error:
            raise RequestRefusedError(f"the request is not JSON: {error!s:.200}") from None
        tries = AsyncRetrying(
            stop=stop_before_delay(patience),
            wait=wait_random_exponential(0.2, max=2),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        answer: Json = await tries(self._tried, method, path, content, self._timeout + wait)
        return answer

    async def _tried(self, method: str, path: str, content: bytes | None, seconds: float) -> Json:
        headers = {} if content is None else {"Content-Type": "application/json"}
        read = bytearray()
        try:
            async with (
                asyncio.timeout(seconds),
                self._http.stream(method, self._url + path, content=content, headers=headers) as response,
            ):
                async for piece in response.aiter_raw():
                    read += piece
                    if len(read) > MAX_ANSWER:
                        raise AnswerInvalidError(f"{self._url}: an answer of more than {MAX_ANSWER} bytes")
        except TimeoutError:
            raise EngineTimeoutError(f"{self._url}: no whole answer within {seconds:g} s") from None
        except self._faults as error:
            raise EngineError(f"{self._url}: {str(error) or type(error).__name__:.200}") from error
        return _answer(self._url, response, bytes(read))

    def close(self) -> None:
        """End what is under way, and close all connections."""
        with self._turn:
            was_open, self._is_open = self._is_open, False
        if was_open and self._process == os.getpid():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.aclose()


class ServiceApprovals(Generic[One, Many]):
    """Approvals at the service. Who decides is who the token stands for.

    ServiceError `approvals.<rule>`: a step that the rules do not admit.
    """

    def __init__(self, connection: Connection, sent: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.connection = connection
        self._sent = sent

    def list(self, **filters: str) -> Many:
        """Return those that the token may see, in the order of being opened; by state, tool, subject and run_id."""
        found: Many = self._sent(self._pages(filters))
        return found

    def get(self, approval_id: str) -> One:
        """Return the approval of that id."""
        return self._one("GET", approval_id)

    def wait(self, approval_id: str, seconds: int = LONGEST_WAIT) -> One:
        """Return it once it is decided, or pending as it is after so many seconds, at most 55; then ask again."""
        return self._one("GET", approval_id, f"?wait={seconds}s", wait=seconds)

    def grant(self, approval_id: str) -> One:
        """Count one person's approval."""
        return self._one("POST", approval_id, "/grant", {})

    def deny(self, approval_id: str, why: str | None = None) -> One:
        """Deny it; the reason is for the record."""
        return self._one("POST", approval_id, "/deny", {} if why is None else {"reason": why})

    def withdraw(self, approval_id: str) -> One:
        """Take it back, as who asked for it."""
        return self._one("POST", approval_id, "/withdraw", {})

    def _one(self, method: str, approval_id: str, rest: str = "", body: Any = None, *, wait: float = 0) -> One:
        async def record() -> Approval:
            path, patience = f"/v1/approvals/{_part(approval_id)}{rest}", 0 if method == "POST" else PATIENCE
            return approval_of(await self.connection.exchange(method, path, body, patience=patience, wait=wait))

        one: One = self._sent(record())
        return one

    async def _pages(self, filters: Json) -> Sequence[Approval]:
        found: list[Approval] = []
        for _ in range(_MOST_PAGES):
            page = await self.connection.exchange("GET", f"/v1/approvals?{urlencode(filters)}", patience=PATIENCE)
            if not isinstance(page.get("approvals"), list):
                break
            found += map(approval_of, page["approvals"])
            if page.get("next") is None:
                return found
            filters = {**filters, "after": page["next"]}
        raise AnswerInvalidError("the service's answer is not a list of approvals, or has no end")


class Endpoints(Generic[Answer, One, Many]):
    """The endpoints of the service; docs/service.md says what their bodies and answers are.

    `sent` starts a request, and returns its answer or what gives that when it is awaited.
    """

    def __init__(self, connection: Connection, sent: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.connection = connection
        self._sent = sent
        self.approvals: ServiceApprovals[One, Many] = ServiceApprovals(connection, sent)

    def evaluate(self, request: Mapping[str, Any]) -> Answer:
        """Ask an AuthZEN evaluation: `{subject, action, resource, context?}` -> `{decision, context?}`."""
        return self._asked("/access/v1/evaluation", request)

    def evaluations(self, request: Mapping[str, Any]) -> Answer:
        """Ask several at once: `{evaluations: [...], ...}` -> `{evaluations: [{decision, context?}]}`."""
        return self._asked("/access/v1/evaluations", request)

    def search(self, kind: str, request: Mapping[str, Any]) -> Answer:
        """Ask which `subject`, `resource` or `action` would be allowed: -> `{results, page?}`."""
        return self._asked(f"/access/v1/search/{_part(kind)}", request)

    def propose(self, call: Mapping[str, Any]) -> Answer:
        """Propose a call: `{proposal, session, id?, run?, ...}`. What runs is tried again only where it has an id."""
        return self._asked("/v1/proposals", call, patience=None if "id" in call or call.get("run") is False else 0)

    def plan(self, steps: Sequence[Any], session: Mapping[str, Any]) -> Answer:
        """Check a whole plan before its first call."""
        return self._asked("/v1/proposals", {"plan": steps, "session": session})

    def result(self, call_id: str, execution: Mapping[str, Any], patience: float | None = None) -> Answer:
        """Report what a call came to: `{started, attempts, result}` or `{started, attempts, failure}`.

        `patience`: for how many seconds it is tried again; two when absent.
        """
        return self._asked(f"/v1/proposals/{_part(call_id)}/result", {"execution": execution}, patience=patience)

    def end_run(self, run_id: str, session: Mapping[str, Any]) -> Answer:
        """Forget a run and all that it remembers."""
        return self._asked(f"/v1/runs/{_part(run_id)}/end", {"session": session})

    def tools(self, session: Mapping[str, Any], form: str = "plain") -> Answer:
        """Ask what the subject's model may see, in the form `plain`, `openai`, `anthropic` or `mcp`."""
        return self._asked(f"/v1/tools?format={_part(form)}", {"session": session})

    def manifest(self) -> Answer:
        """Read the effective manifest."""
        return self._asked("/v1/manifest", method="GET")

    def _asked(self, path: str, body: Any = None, *, method: str = "POST", patience: float | None = None) -> Answer:
        patience = PATIENCE if patience is None else patience
        answer: Answer = self._sent(self.connection.exchange(method, path, body, patience=patience))
        return answer


class Client(Closable, Endpoints[Json, Approval, Sequence[Approval]]):
    """A client of the decision service. Safe to share between threads and tasks; close it when done.

    `asynchronous` has the same methods, to be awaited in any event loop.

    Args:
        url: `https://HOST[:PORT][/PATH]`; `http` for this machine alone.
        token: a bearer token; else the variable PDP_TOKEN. Shown nowhere.
        timeout: seconds for one try.

    Methods raise EngineError, see `Connection.exchange`. UsageError: an address or token that cannot be used.
    """

    @checked
    def __init__(self, url: str, *, token: str | None = None, timeout: float = TIMEOUT) -> None:
        super().__init__(Connection(url, token, timeout), lambda work: self.connection.start(work).result())
        self.asynchronous: Endpoints[Awaitable[Json], Awaitable[Approval], Awaitable[Sequence[Approval]]] = Endpoints(
            self.connection, lambda work: asyncio.wrap_future(self.connection.start(work))
        )

    def close(self) -> None:
        """End what is under way, and close all connections."""
        self.connection.close()


def _part(text: str) -> str:
    return quote(text, safe="")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ServiceError):
        return error.status >= _FAILED or error.status in _PASSING
    return isinstance(error, EngineError) and not isinstance(error, AnswerInvalidError | RequestRefusedError)


def _answer(url: str, response: httpx.Response, body: bytes) -> Json:
    status, answer = response.status_code, None
    if response.is_success and not body:
        return {}
    with suppress(JsonValueError):
        answer = parse_json(body)
    if response.is_success and isinstance(answer, dict):
        return answer
    if response.is_error:
        problem = {"message": answer} if isinstance(answer, str) else answer  # a text: as AuthZEN has it
        problem = problem.get("error", problem) if isinstance(problem, dict) else None
        if isinstance(problem, dict) or status >= _FAILED:  # a proxy says that the service is down with a page
            named = {name: str(value)[:_SHOWN] for name, value in (problem or {}).items()}
            code = named.get("code", f"http.{status}")
            raise ServiceError(status, code, named.get("message", "it gives no reason"), named.get("hint"))
    hint = "check the address; no redirection is followed"
    raise AnswerInvalidError(f"{url}: status {status}, and no answer of the service", hint=hint)


def secure_url(url: str) -> str:
    """Return a URL that is https, or http of this machine, and names no user; ValueError: another one, not shown."""
    import httpx  # noqa: PLC0415 - as above

    with suppress(httpx.InvalidURL, TypeError):
        parts = httpx.URL(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(parts.host))
        is_named = parts.host and "%" not in parts.host  # which stands for what no host has, such as a blank
        if is_safe and is_named and (parts.port or 0) <= _LAST_PORT and not parts.userinfo:
            return url
    raise ValueError("has to begin with https://, without a user")


def _service_url(url: str) -> str:
    with suppress(ValueError):
        if not {"?", "#"}.intersection(secure_url(url)):
            return url.rstrip("/")
    raise UsageError("not the address of a service", hint="https://HOST[:PORT][/PATH]; http for this machine alone")


def is_this_machine(host: str) -> bool:
    """Return whether a name or address is of the loopback."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _token(given: str | None) -> str:
    token = (given or os.environ.get(TOKEN_VARIABLE, "")).strip()
    if not _TOKEN.fullmatch(token):
        wrong = "the token has characters that none has" if token else "no token for the service"
        raise UsageError(wrong, hint=f"pass it, or set {TOKEN_VARIABLE}")
    return token
