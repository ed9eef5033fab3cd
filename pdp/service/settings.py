"""Configuration of the service: a YAML file, variables `PDP_SERVICE_...` over it, options of `pdp serve` over both."""

import os
from base64 import b64decode
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource
from pydantic_settings.exceptions import SettingsError

from pdp.client.client import is_this_machine, secure_url
from pdp.documents import Document, Part, faults_of, nearest, read_document
from pdp.engine.protocol import EngineName
from pdp.errors import FileFaultsError, UsageError
from pdp.json import MAX_BYTES
from pdp.project.file import PROJECT_FILE, ProjectPath, ProjectStore, chosen_project, read_project
from pdp.service.security.principal import Scope

DEFAULT_TENANT: Final = "default"
PREFIX: Final = "PDP_SERVICE_"

_SECRET_BYTES: Final = 24  # as Standard Webhooks has it
_TENANT: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"


def _secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    key = b64decode(text.removeprefix("whsec_"), validate=True) if text.startswith("whsec_") else text.encode()
    if len(key) < _SECRET_BYTES:
        raise ValueError(f"has to have at least {_SECRET_BYTES} bytes")
    return secret


RulePath = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$")]
SecureUrl = Annotated[str, AfterValidator(secure_url)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitSettings(_Part):
    """What one request may cost, and how many one token may make."""

    body_bytes: int = Field(MAX_BYTES, ge=1024, le=MAX_BYTES)
    body_seconds: float = Field(10, gt=0, le=60)
    batch: int = Field(100, ge=1, le=1000)
    page: int = Field(100, ge=1, le=1000)
    requests_per_second: float = Field(1000, gt=0)
    burst: int = Field(2000, ge=1)
    wait_seconds: float = Field(55, ge=0, le=55)
    waiting: int = Field(1000, ge=1)
    connections: int = Field(2000, ge=1)


class OidcSettings(_Part):
    """An OpenID Connect provider whose access tokens count.

    Attributes:
        audience: what `aud` has to hold; jwks_url: where its keys are (`jwks_uri` of its discovery document).
        tenant: whose users they are; scopes: by scope of the token, the service's scopes that it gives.
        claims: by claim of a session (`roles`, `clearances`...), the claim of the token that it is read from, by name
            or JSON Pointer (`/realm_access/roles`). `sub`, `iss`, `act` and what marks a token are its own.
    """

    issuer: SecureUrl
    audience: str
    jwks_url: SecureUrl
    algorithms: tuple[Literal["RS256", "PS256", "ES256"], ...] = Field(("RS256", "ES256"), min_length=1)
    tenant: str = DEFAULT_TENANT
    scopes: dict[str, tuple[Scope, ...]] = {}
    claims: dict[str, str] = {}


class WebhookSettings(_Part):
    """Where events of approvals are sent, signed with `secret`.

    `private`: also to this machine, where http will do, and to private networks.
    """

    url: SecureUrl
    secret: Annotated[SecretStr, AfterValidator(_secret)]
    private: bool = False

    def model_post_init(self, _: Any) -> None:
        """Check what fields say together."""
        if not self.private and not self.url.startswith("https:"):
            raise ValueError("url: has to begin with https://, unless private is true")


class AuthzenSettings(_Part):
    """The policy that answers AuthZEN requests instead of the tenant's own, which decides its tool calls.

    Attributes:
        entrypoint: what it answers with: true, or `{decision | allow | verdict, context?}`.
        opa_url: of the OPA that has it.
        accept_unknown_opa: let it answer if it does not say which release it is.
        subject_search...: documents that list ids, or names of actions, for a request; each is then evaluated.
    """

    entrypoint: RulePath
    opa_url: str
    accept_unknown_opa: bool = False
    subject_search: RulePath | None = None
    resource_search: RulePath | None = None
    action_search: RulePath | None = None


class TenantSettings(_Part):
    """One tenant: its project file, and where its approvals, keys and audit stream are stored.

    `workspaces`: folders of this machine in which clients of http hooks work.
    """

    project: ProjectPath
    store: ProjectStore
    engine: EngineName | None = None
    opa_url: str | None = None
    accept_unknown_opa: bool = False
    audit_key_file: ProjectPath | None = None
    webhooks: tuple[WebhookSettings, ...] = ()
    workspaces: tuple[ProjectPath, ...] = ()
    authzen: AuthzenSettings | None = None

    def model_post_init(self, _: Any) -> None:
        """Check what fields say together."""
        if self.engine == "embedded" and self.opa_url is not None:
            raise ValueError("opa_url: goes with the engine sidecar")


class ServiceSettings(_Part):
    """What `pdp serve` runs with; made by `read_settings`.

    Attributes:
        tenants: by name; a service for one has the tenant `default`.
        store: where access tokens are; the store of the tenant `default` when absent.
        public_url: how clients reach it, for metadata; `https` behind TLS or a proxy.
        proxies: addresses whose `X-Forwarded-...` headers count; needed to bind another interface without TLS files.
    """

    host: str = "127.0.0.1"
    port: int = Field(8181, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=64)
    public_url: SecureUrl | None = None
    tls_cert: ProjectPath | None = None
    tls_key: ProjectPath | None = None
    proxies: tuple[IPvAnyNetwork, ...] = ()
    tenants: dict[Annotated[str, Field(pattern=_TENANT)], TenantSettings] = {}
    store: ProjectStore | None = None
    oidc: tuple[OidcSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None

    def model_post_init(self, _: Any) -> None:
        """Check what fields say together."""
        if not self.tenants:
            raise ValueError("tenants: at least one is needed")
        for provider in self.oidc:
            if provider.tenant not in self.tenants:
                raise ValueError(f"oidc: {provider.issuer}: there is no tenant {provider.tenant}")
        if self.tls_key and not self.tls_cert:
            raise ValueError("tls_key: needs tls_cert beside it")
        if not (is_this_machine(self.host) or self.tls_cert or self.proxies):
            raise ValueError(f"host: {self.host} can be reached from elsewhere: state tls_cert, or proxies before it")

    @property
    def url(self) -> str:
        """How clients reach the service."""
        scheme = "https" if self.tls_cert else "http"
        return (self.public_url or f"{scheme}://{self.host}:{self.port}").rstrip("/")


def read_settings(file: Path | None, options: dict[str, Any]) -> ServiceSettings:
    """Return what a configuration file states, the environment over it, and `options`, in the file's shape, over both.

    Paths in the file are relative to its folder. Where no tenant is stated, `default` has the project that is found
    from the current folder; a tenant without a store has the project's, or `pdp.db` beside the project file.

    UsageError: anything in it cannot be used; FileFaultsError where it stands in the file.
    """
    document = Document("", "", Part({}, 1, 1)) if file is None else read_document(file)
    over = _over(_environment(), options)
    folder = Path() if file is None else file.parent
    values = document.value
    if isinstance(values, dict):
        values = _over(values, over)
        values["tenants"] = values.get("tenants") or {DEFAULT_TENANT: {}}
        if isinstance(values["tenants"], dict):
            tenants = {name: _completed(name, tenant, folder) for name, tenant in values["tenants"].items()}
            values["tenants"] = tenants
    try:
        return ServiceSettings.model_validate(values, context=folder)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            if file is None or _stands(fault["loc"], over):
                name = "__".join(map(str, fault["loc"]))
                what = f"{PREFIX}{name.upper()}, or its option" if name else "settings"
                told = fault["msg"].removeprefix("Value error, ")
                raise UsageError(f"{what}: {told}", hint="see docs/service.md") from None
        raise FileFaultsError(faults_of(error, document, ServiceSettings)) from None


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{name: _over(below.get(name), value) for name, value in above.items()}}


def _stands(path: tuple[int | str, ...], values: Any) -> bool:
    for step in path:
        if not isinstance(values, dict) or step not in values:
            return False
        values = values[step]
    return bool(path)


def _environment() -> dict[str, Any]:
    """Return what variables state; UsageError for one that nothing reads, and for one with half a JSON value."""
    known = [f"{PREFIX}{name}".upper() for name in ServiceSettings.model_fields]
    for name in os.environ:
        field = PREFIX + name.removeprefix(PREFIX).partition("__")[0]
        if name.startswith(PREFIX) and field not in known:
            raise UsageError(f"variable {name}: there is no such setting", hint=nearest(field, known))
    try:
        return EnvSettingsSource(
            cast("Any", ServiceSettings), case_sensitive=False, env_prefix=PREFIX, env_nested_delimiter="__"
        )()
    except SettingsError as error:
        raise UsageError(f"a variable {PREFIX}...: {error}", hint="lists and mappings are written as JSON") from None


def _completed(name: str, tenant: Any, folder: Path) -> Any:
    """Return a tenant with project and store, where they are not stated."""
    if not isinstance(tenant, dict) or ("project" in tenant and "store" in tenant):
        return tenant
    file = folder / tenant["project"] if isinstance(tenant.get("project"), str | Path) else None
    if file is None and name == DEFAULT_TENANT:
        file = chosen_project()
        if file is None:
            raise UsageError("no project is named, and none is here", hint=f"name its {PROJECT_FILE} with --project")
    if file is None:
        return tenant
    beside = file.absolute().parent
    if Path(__file__).parents[1] in beside.resolve().parents:
        beside = Path.cwd()  # what is installed stays as it is
    store = tenant.get("store") or read_project(file).store or f"sqlite:///{beside / 'pdp.db'}"
    return {**tenant, "project": file.absolute(), "store": store}
