"""Settings of the gateway: servers, the project that decides, and how clients reach it."""

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pdp.client.client import secure_url
from pdp.documents import read_record
from pdp.errors import UsageError
from pdp.project.file import PROJECT_FILE, ProjectPath

GATEWAY_FILE: Final = "gateway.yaml"


class _GatewayPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ServerSettings(_GatewayPart):
    """One MCP server: a `command` that starts the server, or a `url`. Clients cannot change these settings.

    A variable that is null in `env` gets the gateway's value; without `env`, the program gets all variables of the
    gateway. `headers_from_env` names, for each header, the environment variable that contains its value.
    """

    command: tuple[str, ...] = ()
    env: dict[str, str | None] | None = None
    cwd: ProjectPath | None = None
    url: Annotated[str, AfterValidator(secure_url)] | None = None
    headers_from_env: dict[str, str] = {}

    def model_post_init(self, _: object) -> None:
        """Raise `ValueError` unless exactly one of `command` and `url` is set."""
        if bool(self.command) == bool(self.url):
            raise ValueError("must have either `command` or `url`")

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the server's program. Raises `UsageError` if a variable is not set."""
        stated = dict(os.environ) if self.env is None else self.env
        return {name: _variable(name) if value is None else value for name, value in stated.items()}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of requests to the server. Raises `UsageError` if a variable is not set."""
        return {header: _variable(name) for header, name in self.headers_from_env.items()}


class GatewaySettings(_GatewayPart):
    """The settings of a gateway. Tool names start with the server's name and `__`, unless there is only one server.

    `project` is the project file; its session names the caller over stdio. `http` is a file with service settings, as
    for `pdp serve`; without it, the gateway serves stdio. Over HTTP, only tokens of `tenant` are accepted. `timeout`
    limits the start of a server and each answer, in seconds. `hold` is how many seconds a call waits for a person
    before its client is informed. `max_result` is in bytes. `approval_page` replaces the console's pages of approvals:
    the approval's id is appended to this URL.
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
        """The file with the reviewed tool declarations."""
        return self.project.parent / "pins.json"

    def public(self, server: str, name: str) -> str:
        """Return the name under which clients know a tool or prompt of a server."""
        return name if len(self.servers) == 1 else f"{server}__{name}"


def read_gateway(file: Path) -> GatewaySettings:
    """Read the settings from a file. Raise `UsageError`, or `FileFaultsError` with a location for each fault."""
    return read_record(file, GatewaySettings)


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise UsageError(
            f"environment variable {name} is not set", hint=f"set the variable, or change {GATEWAY_FILE}"
        ) from None
