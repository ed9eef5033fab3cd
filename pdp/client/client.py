"""The client of the decision service, synchronous and asynchronous."""

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

TOKEN_VARIABLE: Final = "PDP_TOKEN"  # noqa: S105 - the name of a variable, not a token
TIMEOUT: Final = 10.0  # The default number of seconds for one attempt.
PATIENCE: Final = 2.0  # A request that can be repeated safely is repeated for this many seconds.
LONGEST_WAIT: Final = 55  # The maximum number of seconds that one request waits for an approval.
MAX_ANSWER: Final = 16 * 1024 * 1024  # The maximum size of an answer in bytes.

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,8192}=*")
_MOST_PAGES: Final = 1000
_SERVER_ERROR: Final = 500  # Answers from this HTTP status on are failures of the service.
_RETRYABLE: Final = frozenset((408, 429))
_LAST_PORT: Final = 65535
_SHOWN: Final = 300
_ADDRESS: Final = "write https://HOST[:PORT][/PATH]; http is allowed for this machine only"

Json = dict[str, Any]
Record = TypeVar("Record")
Records = TypeVar("Records")
Answer = TypeVar("Answer")


class ServiceError(EngineError):
    """The decision service answered a request with an HTTP error.

    Attributes:
        status: the HTTP status.
        error_code: the code in the answer, such as `service.forbidden`.
    """

    def __init__(self, status: int, error_code: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{error_code}: {message}", hint=hint)
        self.status = status
        self.error_code = error_code


class Connection:
    """The connections to a service, safe to share between threads and tasks; see `Client`.

    The connections run in an event loop of a separate thread, so all threads and event loops can share them. Deadlines
    also cover name lookup, TLS and an answer that arrives slowly.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        with extra("client"):
            import httpx  # noqa: PLC0415 - only with a decision service
        self._network_errors = (httpx.HTTPError, OSError)
        self._url = _service_url(url)
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {_token(token)}", "Accept-Encoding": "identity"},
            verify=ssl.create_default_context(),
            trust_env=False,  # The token must not reach a proxy or the target of a redirect.
            timeout=None,  # noqa: S113 - `asyncio.timeout` bounds each attempt
        )
        self._process, self._is_open, self._lock = os.getpid(), True, threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pdp-client", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start `work` in the client's event loop, and return a future. Raise EngineError after `close` or a fork."""
        with self._lock:
            if self._is_open and self._process == os.getpid():
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise EngineError(
            "the client is closed, or belongs to another process", hint="create a new `Client` in this process"
        )

    async def exchange(self, method: str, path: str, body: Any = None, *, patience: float = 0, wait: float = 0) -> Json:
        """Send a request and return the JSON object in the answer; an empty object for an empty answer.

        The request is repeated after temporary failures, for `patience` seconds. `wait` seconds are added to the
        timeout, because the service may wait before it answers. Raises EngineError if the service cannot be reached,
        rejects the request (`ServiceError`), times out, or sends a malformed answer.
        """
        try:
            content = None if body is None else orjson.dumps(body)
        except (TypeError, ValueError) as error:
            raise RequestRefusedError(f"the request is not JSON: {error!s:.200}") from None
        retrying = AsyncRetrying(
            stop=stop_before_delay(patience),
            wait=wait_random_exponential(0.2, max=2),
            retry=retry_if_exception(_is_retryable),
            reraise=True,
        )
        answer: Json = await retrying(self._exchange_once, method, path, content, self._timeout + wait)
        return answer

    async def all_of(self, name: str, filters: Mapping[str, str]) -> Sequence[Any]:
        """Return the entries of all pages of the list `/v1/NAME`. Raise EngineError as `exchange` does."""
        entries: list[Any] = []
        for _ in range(_MOST_PAGES):
            page = await self.exchange("GET", f"/v1/{name}?{urlencode(filters)}", patience=PATIENCE)
            if not isinstance(page.get(name), list):
                break
            entries += page[name]
            if page.get("next") is None:
                return entries
            filters = {**filters, "after": page["next"]}
        raise AnswerInvalidError(f"the service's answer is not a list of {name}, or has too many pages")

    async def _exchange_once(self, method: str, path: str, content: bytes | None, seconds: float) -> Json:
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
                        raise AnswerInvalidError(f"{self._url}: the answer has more than {MAX_ANSWER} bytes")
        except TimeoutError:
            raise EngineTimeoutError(f"{self._url}: no complete answer within {seconds:g} s") from None
        except self._network_errors as error:
            raise EngineError(f"{self._url}: {str(error) or type(error).__name__:.200}") from error
        return _answer(self._url, response, bytes(read))

    def close(self) -> None:
        """Cancel the requests in progress, and close all connections."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open and self._process == os.getpid():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()
        # The generators of an answer that was not read to its end are closed by the loop, so it must not stop before.
        await asyncio.get_running_loop().shutdown_asyncgens()
        await asyncio.sleep(0)


class ServiceApprovals(Generic[Record, Records]):
    """The approvals of a service. The approver is the subject of the token.

    Methods raise `EngineError`. If a rule forbids the request, it is a `ServiceError` with the code `approvals.RULE`.
    """

    def __init__(self, connection: Connection, sent: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.connection = connection
        self._sent = sent

    def list(self, **filters: str) -> Records:
        """Return the approvals that the token may see, oldest first.

        Args:
            filters: required values of the fields `state`, `tool`, `subject` and `run_id`.
        """
        approvals: Records = self._sent(self._pages(filters))
        return approvals

    def get(self, approval_id: str) -> Record:
        """Return the approval with this id."""
        return self._request("GET", approval_id)

    def wait(self, approval_id: str, seconds: int = LONGEST_WAIT) -> Record:
        """Wait until the approval is decided, for at most `seconds` (up to 55), and return the approval."""
        return self._request("GET", approval_id, f"?wait={seconds}s", wait=seconds)

    def grant(self, approval_id: str, *, reach: str = "once", until: str | None = None) -> Record:
        """Approve the call as the person of the token. The call may need further approvers.

        Args:
            approval_id: the id of the approval.
            reach: `once`, or `run` or `until` for a grant that lasts, if the tool's entry allows it.
            until: the end of a grant that lasts, such as `2026-07-01T10:00:00Z`.
        """
        choice = {"reach": reach} | ({} if until is None else {"until": until})
        return self._request("POST", approval_id, "/grant", {} if reach == "once" else choice)

    def deny(self, approval_id: str, why: str | None = None) -> Record:
        """Deny the call; `why` is recorded as the reason."""
        return self._request("POST", approval_id, "/deny", {} if why is None else {"reason": why})

    def withdraw(self, approval_id: str) -> Record:
        """Withdraw the approval. Only the caller who requested the approval may withdraw it."""
        return self._request("POST", approval_id, "/withdraw", {})

    def _request(self, method: str, approval_id: str, rest: str = "", body: Any = None, *, wait: float = 0) -> Record:
        async def send() -> Approval:
            path, patience = f"/v1/approvals/{_quoted(approval_id)}{rest}", 0 if method == "POST" else PATIENCE
            return approval_of(await self.connection.exchange(method, path, body, patience=patience, wait=wait))

        approval: Record = self._sent(send())
        return approval

    async def _pages(self, filters: Json) -> Sequence[Approval]:
        return [approval_of(each) for each in await self.connection.all_of("approvals", filters)]


class Endpoints(Generic[Answer, Record, Records]):
    """The endpoints of the service; `GET /openapi.json` describes their bodies and answers.

    `sent` is called with each request, and returns the answer or an awaitable of the answer.
    """

    def __init__(self, connection: Connection, sent: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.connection = connection
        self._sent = sent
        self.approvals: ServiceApprovals[Record, Records] = ServiceApprovals(connection, sent)

    def evaluate(self, request: Mapping[str, Any]) -> Answer:
        """Request an AuthZEN evaluation: `{subject, action, resource, context?}` -> `{decision, context?}`."""
        return self._request("/access/v1/evaluation", request)

    def evaluations(self, request: Mapping[str, Any]) -> Answer:
        """Request several evaluations: `{evaluations: [...], ...}` -> `{evaluations: [{decision, context?}]}`."""
        return self._request("/access/v1/evaluations", request)

    def search(self, kind: str, request: Mapping[str, Any]) -> Answer:
        """Search for the allowed values of `kind`, which is `subject`, `resource` or `action` -> `{results, page?}`."""
        return self._request(f"/access/v1/search/{_quoted(kind)}", request)

    def propose(self, call: Mapping[str, Any]) -> Answer:
        """Propose `{proposal, session, id?, run?, ...}`. Requests that run a call are retried only with an `id`."""
        return self._request("/v1/proposals", call, patience=None if "id" in call or call.get("run") is False else 0)

    def plan(self, steps: Sequence[Any], session: Mapping[str, Any]) -> Answer:
        """Check a whole plan before its first call."""
        return self._request("/v1/proposals", {"plan": steps, "session": session})

    def result(self, call_id: str, execution: Mapping[str, Any], patience: float | None = None) -> Answer:
        """Report the outcome of a call: `{started, attempts, result}` or `{started, attempts, failure}`.

        Args:
            call_id: the id of the call.
            execution: the outcome.
            patience: how many seconds the report is repeated after temporary failures; by default 2.
        """
        return self._request(f"/v1/proposals/{_quoted(call_id)}/result", {"execution": execution}, patience=patience)

    def end_run(self, run_id: str, session: Mapping[str, Any]) -> Answer:
        """End a run and delete all its records."""
        return self._request(f"/v1/runs/{_quoted(run_id)}/end", {"session": session})

    def grants(self, *, active: bool = False) -> Answer:
        """Return all lasting grants that the token may see, oldest first: `{grants: [...]}`.

        Args:
            active: leave out grants that have ended.
        """

        async def send() -> Json:
            return {"grants": await self.connection.all_of("grants", {"active": str(active).lower()})}

        answer: Answer = self._sent(send())
        return answer

    def grant(self, grant_id: str) -> Answer:
        """Return one lasting grant."""
        return self._request(f"/v1/grants/{_quoted(grant_id)}", method="GET")

    def revoke(self, grant_id: str, why: str | None = None) -> Answer:
        """Revoke a lasting grant as the person of the token. It ends at once; `why` is recorded as the reason."""
        reason = {} if why is None else {"reason": why}
        return self._request(f"/v1/grants/{_quoted(grant_id)}/revoke", reason, patience=0)

    def tokens(self) -> Answer:
        """Return the tokens of the token's tenant, without secrets: `{tokens: [...]}`. Needs the scope `admin`."""
        return self._request("/v1/tokens", method="GET")

    def revoke_token(self, token_id: str) -> Answer:
        """Revoke a token and its browser sessions."""
        return self._request(f"/v1/tokens/{_quoted(token_id)}", method="DELETE")

    def rotate_token(self, token_id: str, grace: int = 0) -> Answer:
        """Replace a token; the old one is valid for `grace` more seconds. Only the answer contains the secret."""
        return self._request(f"/v1/tokens/{_quoted(token_id)}/rotate?grace={grace}", patience=0)

    def tools(self, session: Mapping[str, Any], form: str = "plain") -> Answer:
        """Return the tools that the model may see, in the format `plain`, `openai`, `anthropic` or `mcp`."""
        return self._request(f"/v1/tools?format={_quoted(form)}", {"session": session})

    def manifest(self) -> Answer:
        """Return the effective manifest of the service."""
        return self._request("/v1/manifest", method="GET")

    def _request(self, path: str, body: Any = None, *, method: str = "POST", patience: float | None = None) -> Answer:
        patience = PATIENCE if patience is None else patience
        answer: Answer = self._sent(self.connection.exchange(method, path, body, patience=patience))
        return answer


class Client(Closable, Endpoints[Json, Approval, Sequence[Approval]]):
    """A client of the decision service. Safe to share between threads and tasks; close it when done.

    Methods raise `EngineError`; `Connection.exchange` lists the causes.

    Args:
        url: `https://HOST[:PORT][/PATH]`; `http` is allowed for this machine only.
        token: a bearer token, which is never logged; by default the variable PDP_TOKEN.
        timeout: seconds for one attempt.

    Attributes:
        approvals: the approvals of the service.
        asynchronous: the same methods as coroutines, for any event loop.

    Raises:
        UsageError: the address or the token cannot be used.

    Examples:
        >>> session = {"claims": {"sub": "officer-123", "scope": "payments.lookup"}}
        >>> client = Client("https://pdp.example.com", token="eyJhbGciOi")
        >>> client.tools(session)["tools"]  # doctest: +SKIP
        [{'name': 'lookup_beneficiary', 'visibility': 'ALLOW'}]
        >>> client.close()
    """

    @checked
    def __init__(self, url: str, *, token: str | None = None, timeout: float = TIMEOUT) -> None:
        super().__init__(Connection(url, token, timeout), lambda work: self.connection.start(work).result())
        self.asynchronous: Endpoints[Awaitable[Json], Awaitable[Approval], Awaitable[Sequence[Approval]]] = Endpoints(
            self.connection, lambda work: asyncio.wrap_future(self.connection.start(work))
        )

    def close(self) -> None:
        """Cancel the requests in progress, and close all connections."""
        self.connection.close()


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _is_retryable(error: BaseException) -> bool:
    if isinstance(error, ServiceError):
        return error.status >= _SERVER_ERROR or error.status in _RETRYABLE
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
        problem = {"message": answer} if isinstance(answer, str) else answer  # AuthZEN's error bodies are plain text.
        problem = problem.get("error", problem) if isinstance(problem, dict) else None
        if (
            isinstance(problem, dict) or status >= _SERVER_ERROR
        ):  # If the service is down, a proxy answers with an HTML page instead of JSON.
            named = {name: str(value)[:_SHOWN] for name, value in (problem or {}).items()}
            code = named.get("code", f"http.{status}")
            raise ServiceError(status, code, named.get("message", "the service gives no reason"), named.get("hint"))
    hint = "check the address; redirects are not followed"
    raise AnswerInvalidError(f"{url}: status {status}, and not an answer of the decision service", hint=hint)


def secure_url(url: str) -> str:
    """Return a URL that is `https`, or `http` on this machine, and names no user.

    Raises ValueError for any other URL; the message does not show the URL.
    """
    import httpx  # noqa: PLC0415 - only with a decision service

    with suppress(httpx.InvalidURL, TypeError):
        parts = httpx.URL(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(parts.host))
        # httpx percent-encodes characters that no host name may have, such as a blank.
        is_named = parts.host and "%" not in parts.host
        if is_safe and is_named and (parts.port or 0) <= _LAST_PORT and not parts.userinfo:
            return url
    raise ValueError("has to begin with https:// and must not name a user")


def _service_url(url: str) -> str:
    with suppress(ValueError):
        if not {"?", "#"}.intersection(secure_url(url)):
            return url.rstrip("/")
    raise UsageError("not the address of a decision service", hint=_ADDRESS)


def is_this_machine(host: str) -> bool:
    """Return whether a host name or address is the loopback interface."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _token(given: str | None) -> str:
    token = (given or os.environ.get(TOKEN_VARIABLE, "")).strip()
    if not _TOKEN.fullmatch(token):
        wrong = (
            "the token has characters that are not allowed in a bearer token" if token else "no token for the service"
        )
        raise UsageError(wrong, hint=f"pass a token, or set {TOKEN_VARIABLE}")
    return token
