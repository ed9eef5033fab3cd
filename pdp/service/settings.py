"""Configuration of the service: a YAML file, variables `PDP_SERVICE_...` over it, options of `pdp serve` over both."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from pdp.engine.protocol import EngineName

DEFAULT_TENANT: Final = "default"
PREFIX: Final = "PDP_SERVICE_"

_TENANT: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"


def _https(url: str) -> str:
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise ValueError("has to begin with https://")
    return url.rstrip("/")


SecureUrl = Annotated[str, AfterValidator(_https)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitSettings(_Part):
    """What one request may cost, and how many one token may make."""

    body_bytes: int = Field(1024 * 1024, ge=1024, le=16 * 1024 * 1024)
    body_seconds: float = Field(10, gt=0, le=60)
    batch: int = Field(100, ge=1, le=1000)
    page: int = Field(100, ge=1, le=1000)
    requests_per_second: float = Field(1000, gt=0)
    burst: int = Field(2000, ge=1)
    wait_seconds: float = Field(55, ge=0, le=55)
    waiting: int = Field(1000, ge=1)


class OidcSettings(_Part):
    """An OpenID Connect provider whose access tokens count.

    Attributes:
        audience: what `aud` has to hold; jwks_url: where its keys are, instead of what its discovery document says.
        tenant: whose users they are; scopes: by scope of the token, the service's scopes that it gives.
        claims: by claim of a session (`roles`, `clearances`...), the claim of the token that it is read from.
    """

    issuer: SecureUrl
    audience: str
    jwks_url: SecureUrl | None = None
    algorithms: tuple[Literal["RS256", "PS256", "ES256", "EdDSA"], ...] = ("RS256", "ES256")
    tenant: str = DEFAULT_TENANT
    scopes: dict[str, tuple[str, ...]] = {}
    claims: dict[str, str] = {}


class WebhookSettings(_Part):
    """Where events of approvals are sent, signed with `secret`; `private`: an address of a private network will do."""

    url: str
    secret: SecretStr
    events: tuple[str, ...] = ()
    private: bool = False


class AuthzenSettings(_Part):
    """Which documents of the policy answer AuthZEN requests; the baseline's when `entrypoint` is absent."""

    entrypoint: str | None = None
    subject_search: str | None = None
    resource_search: str | None = None
    action_search: str | None = None


class TenantSettings(_Part):
    """One tenant: its project file, and where its approvals, keys and audit stream are stored."""

    project: Path
    store: str
    engine: EngineName | None = None
    opa_url: str | None = None
    audit_key_file: Path | None = None
    webhooks: tuple[WebhookSettings, ...] = ()
    authzen: AuthzenSettings = AuthzenSettings()


class ServiceSettings(BaseSettings):
    """What `pdp serve` runs with.

    Attributes:
        tenants: by name; a service for one has the tenant `default`.
        store: where access tokens are; the store of the tenant `default` when absent.
        public_url: how clients reach it, for metadata; `https` behind TLS or a proxy.
        proxies: addresses whose `X-Forwarded-...` headers count; needed to bind another interface without TLS files.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    host: str = "127.0.0.1"
    port: int = Field(8181, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=64)
    public_url: SecureUrl | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxies: tuple[str, ...] = ()
    tenants: dict[Annotated[str, Field(pattern=_TENANT)], TenantSettings] = {}
    store: str | None = None
    oidc: tuple[OidcSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    otlp_endpoint: str | None = None

    def model_post_init(self, _: Any) -> None:
        """Check what fields say together."""
        if not self.tenants:
            raise ValueError("tenants: at least one is needed")

    @property
    def url(self) -> str:
        """How clients reach the service."""
        scheme = "https" if self.tls_cert else "http"
        return self.public_url or f"{scheme}://{self.host}:{self.port}"
