"""The file that names the servers behind the gateway, what decides, and how clients reach it; docs/gateway.md."""

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pdp.client.client import secure_url
from pdp.documents import faults_of, read_document
from pdp.errors import FileFaultsError, UsageError
from pdp.project.file import PROJECT_FILE, ProjectPath

GATEWAY_FILE: Final = "gateway.yaml"
PINS_FILE: Final = "pins.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerSettings(_Part):
    """One MCP server: a program that is started, or a URL. What it gets beside stands here, and comes from no client.

    Attributes:
        command: the program with its arguments; cwd: where it runs.
        env: its variables; null: as the gateway has it. inherit: all that the gateway has, too.
        headers_from_env: by header of each request to `url`, the variable that holds it.
    """

    command: tuple[str, ...] = ()
    env: dict[str, str | None] = {}
    inherit: bool = False
    cwd: ProjectPath | None = None
    url: Annotated[str, AfterValidator(secure_url)] | None = None
    headers_from_env: dict[str, str] = {}

    def model_post_init(self, _: object) -> None:
        """Check what fields say together."""
        if bool(self.command) == bool(self.url):
            raise ValueError("command: has to be there, or url, and not both")
        if self.url and (self.env or self.inherit or self.cwd):
            raise ValueError("url: a server that is not started here has no env, inherit or cwd")

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its program; UsageError: a variable of the gateway's is missing."""
        stated = {name: variable(name) if value is None else value for name, value in self.env.items()}
        return {**(os.environ if self.inherit else {}), **stated}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of requests to it; UsageError: a variable is missing."""
        return {header: variable(name) for header, name in self.headers_from_env.items()}


class GatewaySettings(_Part):
    """What the gateway runs with; made by `read_gateway`.

    Attributes:
        servers: by the name that stands before `__` in the names of their tools; of a single one, names are plain.
        project: what decides; its session says who calls over stdio.
        timeout: seconds that a server may take for an answer, and to start.
    """

    servers: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")], ServerSettings] = Field(min_length=1)
    project: ProjectPath = Path(PROJECT_FILE)
    pins: ProjectPath = Path(PINS_FILE)
    timeout: float = Field(300, gt=0, le=3600)

    def public(self, server: str, name: str) -> str:
        """Return the name by which clients know a tool or prompt of a server."""
        return name if len(self.servers) == 1 else f"{server}__{name}"


def read_gateway(file: Path) -> GatewaySettings:
    """Return what a file states; paths are relative to its folder.

    UsageError: it cannot be read; FileFaultsError: every fault in it, with its place.
    """
    document = read_document(file)
    try:
        return GatewaySettings.model_validate(_with_paths(document.value), context=file.parent)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, GatewaySettings)) from None


def _with_paths(stated: object) -> object:
    return {"project": PROJECT_FILE, "pins": PINS_FILE, **stated} if isinstance(stated, dict) else stated


def variable(name: str) -> str:
    """Return a variable of the environment; UsageError: it is not set."""
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"the variable {name} is not set", hint=f"set it, or change {GATEWAY_FILE}")
    return value
