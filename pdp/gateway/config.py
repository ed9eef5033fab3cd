"""The file that names the servers behind the gateway, what decides, and how clients reach it; docs/gateway.md."""

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pdp.client.client import secure_url
from pdp.documents import read_record
from pdp.errors import UsageError
from pdp.project.file import PROJECT_FILE, ProjectPath

GATEWAY_FILE: Final = "gateway.yaml"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ServerSettings(_Part):
    """One MCP server: a `command` that starts it, or a `url`. What it gets beside stands here, and is no client's.

    `env`: variables of the program, null as the gateway has it; all that the gateway has when absent.
    `headers_from_env`: by header of requests to `url`, the variable that holds it.
    """

    command: tuple[str, ...] = ()
    env: dict[str, str | None] | None = None
    cwd: ProjectPath | None = None
    url: Annotated[str, AfterValidator(secure_url)] | None = None
    headers_from_env: dict[str, str] = {}

    def model_post_init(self, _: object) -> None:
        """Check what fields say together."""
        if bool(self.command) == bool(self.url):
            raise ValueError("command: has to be there, or url, and not both")

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its program; UsageError: a variable is missing."""
        stated = dict(os.environ) if self.env is None else self.env
        return {name: _variable(name) if value is None else value for name, value in stated.items()}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of requests to it; UsageError: a variable is missing."""
        return {header: _variable(name) for header, name in self.headers_from_env.items()}


class GatewaySettings(_Part):
    """What the gateway runs with. `servers`: by the name before `__` in names of their tools; of one, names are plain.

    `project`: what decides, and who calls over stdio. `http`: how it is served instead, a file as of `pdp serve`.
    `timeout`: seconds for a server's start, and for each answer. `hold`: seconds that a call waits for a person before
    its client is told so; `approval_page`: where that person approves, the approval's id is added to it.
    `tenant`: over HTTP, tokens of other tenants are rejected. `max_result`: the most bytes of a result.
    """

    servers: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")], ServerSettings] = Field(min_length=1)
    project: Annotated[ProjectPath, Field(default=PROJECT_FILE)]
    http: ProjectPath | None = None
    tenant: str = "default"
    timeout: float = Field(300, gt=0, le=3600)
    max_result: int = Field(8 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    hold: float = Field(0, ge=0, le=55)
    approval_page: Annotated[str, AfterValidator(secure_url)] | None = None

    @property
    def pins(self) -> Path:
        """The file with what the servers declared when somebody looked."""
        return self.project.parent / "pins.json"

    def public(self, server: str, name: str) -> str:
        """Return the name by which clients know a tool or prompt of a server."""
        return name if len(self.servers) == 1 else f"{server}__{name}"


def read_gateway(file: Path) -> GatewaySettings:
    """Return what a file states; paths are relative to it. UsageError, FileFaultsError: what is wrong, and where."""
    return read_record(file, GatewaySettings)


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise UsageError(f"the variable {name} is not set", hint=f"set it, or change {GATEWAY_FILE}") from None
