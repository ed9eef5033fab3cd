"""Clients of the gateway that wait for approvals, their connections, and a person who grants the approvals."""

import asyncio
import getpass
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any, Literal

import mcp_types as types
import uvicorn
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import TypeAdapter

from pdp.approvals.approvals import Approvals
from pdp.gateway.config import read_gateway
from pdp.gateway.pending import TASKS
from pdp.gateway.server import http_app
from pdp.service.security.tokens import issue_token
from pdp.service.settings import ServiceSettings
from pdp.stores.approvals import Approval
from pdp.stores.url import OpenStores
from tests.support.command_line import environment
from tests.support.mcp.gateway import World

PERSON = {"sub": getpass.getuser(), "azp": "terminal"}
AGENT = {**PERSON, "azp": "an agent", "scope": "mcp.use", "act": {"sub": "agent:tests", "scopes": ["mcp.use"]}}
_ANY: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class Desk:
    """A person who can see, grant and deny the approvals of a gateway."""

    def __init__(self, world: World) -> None:
        self._url = f"sqlite:///{world.folder / 'store.db'}"

    def all(self) -> list[Approval]:
        with closing(OpenStores(self._url)) as stores:
            return [*Approvals(stores.approvals).list()]

    @property
    def states(self) -> list[str]:
        return [str(approval.standing) for approval in self.all()]

    async def waiting(self, number: int) -> None:
        """Wait until this number of approvals exists."""
        while len(await asyncio.to_thread(self.all)) < number:  # noqa: ASYNC110 - another process may write it
            await asyncio.sleep(0.02)

    def grant(self) -> None:
        with closing(OpenStores(self._url)) as stores:
            Approvals(stores.approvals).grant(self.all()[-1].id, PERSON)

    def deny(self, why: str, number: int = -1) -> None:
        with closing(OpenStores(self._url)) as stores:
            Approvals(stores.approvals).deny(self.all()[number].id, PERSON, why=why)

    def token(self, claims: dict[str, Any] = AGENT) -> str:
        """Issue an access token for the gateway over HTTP."""
        with closing(OpenStores(self._url, upgrade=True)) as stores:
            order = {"name": "test", "scopes": ["propose"], "claims": claims}
            return issue_token(stores.tokens, "default", order)[1]


class TaskClaim(types.Result):
    """The answer to a call whose result the client must fetch later, as a task."""

    result_type: Literal["task"]
    task_id: str
    status: str
    ttl_ms: int
    poll_interval_ms: int


class AskForTask(types.GetTaskRequest):
    """The request of a client for the state of a task."""

    name_param = "taskId"


class CancelTask(types.CancelTaskRequest):
    """The request of a client to cancel a task."""

    name_param = "taskId"


async def task_of(client: Client, arguments: dict[str, Any]) -> str:
    """Make a call that becomes a task, and return the id of the task."""
    result: Any = await client.session.call_tool("echo", arguments, allow_claimed=True)
    task_id: str = result.task_id
    return task_id


async def ask_for_task(session: Any, task_id: str) -> dict[str, Any]:
    """Return the state of a task without its texts and times."""
    request = AskForTask(params=types.GetTaskRequestParams(task_id=task_id))
    said: dict[str, Any] = await session.send_request(request, _ANY)
    return {key: said[key] for key in ("taskId", "status", "result", "resultType") if key in said}


async def cancel_task(session: Any, task_id: str) -> None:
    await session.send_request(CancelTask(params=types.CancelTaskRequestParams(task_id=task_id)), _ANY)


class TasksOfClient(ClientExtension):
    """The tasks extension of a client. It polls for the result. After the first poll, the person grants the call."""

    identifier = TASKS

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.statuses: list[str] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskClaim, resolve=self._resolve)]

    async def _resolve(self, claimed: TaskClaim, ctx: ClaimContext) -> types.CallToolResult:
        self.statuses.append(claimed.status)
        while True:
            said = await ask_for_task(ctx.session, claimed.task_id)
            self.statuses.append(said["status"])
            if said["status"] != "working":
                return types.CallToolResult.model_validate(said["result"])
            if len(self.statuses) == 2:
                self._desk.grant()
            await asyncio.sleep(0.3)


@asynccontextmanager
async def over_stdio(world: World, mode: str, **options: Any) -> AsyncIterator[Client]:
    """Connect a client over stdio to a gateway in another process."""
    words = ["-m", "pdp", "mcp-gateway", "serve", "-c", str(world.folder / "gateway.yaml")]
    program = StdioServerParameters(command=sys.executable, args=words, env=environment())
    async with Client(program, mode=mode, cache=None, **options) as client:
        yield client


class HttpGateway:
    """A gateway that serves HTTP in this process."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def client(self, token: str, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
        async with create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=mode, cache=None, **options) as client:
                yield client


@asynccontextmanager
async def over_http(world: World) -> AsyncIterator[HttpGateway]:
    """Serve a gateway over HTTP during the `with` block."""
    Desk(world).token()  # Issuing a token creates the database, which must exist before the gateway starts.
    settings = read_gateway(world.folder / "gateway.yaml")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        tenant = {"project": settings.project, "store": f"sqlite:///{world.folder / 'store.db'}"}
        app = http_app(settings, ServiceSettings(tenants={"default": tenant}, port=port))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)
        try:
            yield HttpGateway(f"http://127.0.0.1:{port}/mcp")
        finally:
            server.should_exit = True
            await serving
