"""Configuration of the service: a YAML file, overridden by variables `PDP_SERVICE_...` and options of `pdp serve`."""

import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource, NestedSecretsSettingsSource
from pydantic_settings.exceptions import SettingsError

from pdp.client.client import is_this_machine, secure_url
from pdp.documents import Document, Part, faults_of, nearest, read_document, written_value
from pdp.engine.protocol import EngineName
from pdp.errors import FileFaultsError, UsageError
from pdp.json import MAX_BYTES, canonical, digest
from pdp.project.file import PROJECT_FILE, ProjectPath, ProjectStore, PublicUrl, chosen_project, read_project
from pdp.service.security.principal import Scope

DEFAULT_TENANT: Final = "default"
PREFIX: Final = "PDP_SERVICE_"

_SECRET_BYTES: Final = 24  # The minimum length of a secret in Standard Webhooks.
_CREATE: Final = "create a secret with: echo whsec_$(openssl rand -base64 24)"
# Passwords in URLs, the path of a webhook's URL, and secrets.
_MASKED: Final = re.compile(
    r'(://[^:@/\s"]*:)(?:[^"\\]|\\.)*(?=@)|(password=)[^&\s"]*|("url": "https?://[^/"]*/)[^"]+|\*{10}'
)
_SECRET: Final = re.compile("secret|token|://")  # Faults do not show the lines of such settings.
_TENANT: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"


def _secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if text != text.strip():
        raise ValueError(f"begins or ends with a blank or line break; {_CREATE}")
    try:
        key = b64decode(text.removeprefix("whsec_"), validate=True) if text.startswith("whsec_") else text.encode()
    except ValueError:
        raise ValueError(f"has no valid base64 after `whsec_`; {_CREATE}") from None
    if len(key) < _SECRET_BYTES:
        raise ValueError(f"has fewer than {_SECRET_BYTES} bytes; {_CREATE}")
    return secret


RulePath = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$")]
SecureUrl = Annotated[str, AfterValidator(secure_url)]


class _FrozenSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitSettings(_FrozenSettings):
    """Limits of a request's size and time, of the number of requests per token, and of connections."""

    body_bytes: int = Field(MAX_BYTES, ge=1024, le=MAX_BYTES)
    body_seconds: float = Field(10, gt=0, le=60)
    batch: int = Field(100, ge=1, le=1000)
    page: int = Field(100, ge=1, le=1000)
    requests_per_second: float = Field(1000, gt=0)
    burst: int = Field(2000, ge=1)
    wait_seconds: float = Field(55, ge=0, le=55)
    waiting: int = Field(1000, ge=1)
    connections: int = Field(2000, ge=1)


class ConsoleClientSettings(_FrozenSettings):
    """The console as a client of the provider, at which people sign in. Its redirect URI is `URL/console/callback`.

    The console asks for `openid` and for `scopes`. Some providers need the parameter `audience` or `resource` to issue
    an access token for the service. The provider must have a discovery document.
    """

    client_id: str = Field(min_length=1)
    client_secret: SecretStr | None = None
    scopes: tuple[Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")], ...] = ()
    parameters: dict[Literal["audience", "resource"], str] = {}


class OidcSettings(_FrozenSettings):
    """An OpenID Connect provider whose access tokens are accepted. Its users belong to `tenant`.

    `jwks_url` is `jwks_uri` in the provider's discovery document. `scopes` maps token scopes to scopes of the service.
    `claims` maps session claims to names or JSON Pointers of token claims; identity claims cannot be mapped.
    With `console`, people can sign in to the console at the provider, with a button that has its `name`.
    """

    issuer: SecureUrl
    audience: str
    jwks_url: SecureUrl
    algorithms: tuple[Literal["RS256", "PS256", "ES256"], ...] = Field(("RS256", "ES256"), min_length=1)
    tenant: str = DEFAULT_TENANT
    scopes: dict[str, tuple[Scope, ...]] = {}
    claims: dict[str, str] = {}
    name: str | None = Field(None, min_length=1, max_length=60)
    console: ConsoleClientSettings | None = None

    @property
    def key(self) -> str:
        """The text that identifies the provider, also after a restart with other settings."""
        return canonical([self.issuer, self.audience, self.tenant]).decode()


class WebhookSettings(_FrozenSettings):
    """A webhook that receives approval events, which are signed with `secret`.

    `private` also allows a receiver on this machine, where http is enough, or in a private network.
    """

    url: SecureUrl
    secret: Annotated[SecretStr, AfterValidator(_secret)]
    private: bool = False

    @property
    def id(self) -> str:
        """The text that identifies the webhook in the store, also after a restart."""
        return digest(canonical(self.url))

    @property
    def label(self) -> str:
        """The webhook's name in metrics, without the path of its URL, which may be secret."""
        return f"{urlsplit(self.url).hostname}-{self.id[7:15]}"

    def model_post_init(self, _: Any) -> None:
        """Require https unless `private` is set."""
        if not self.private and not self.url.startswith("https:"):
            raise ValueError("url: http needs `private: true`; use https for other receivers")


class AuthzenSettings(_FrozenSettings):
    """A separate policy for AuthZEN requests. Without it, the policy of the tenant's tool calls decides the requests.

    The value of the rule `entrypoint` is a boolean or `{decision | allow | verdict, context?}`. The rules `..._search`
    list candidates, which are then evaluated. `accept_unknown_opa` accepts an OPA that does not report its version.
    """

    entrypoint: RulePath
    opa_url: str
    accept_unknown_opa: bool = False
    subject_search: RulePath | None = None
    resource_search: RulePath | None = None
    action_search: RulePath | None = None


class TenantSettings(_FrozenSettings):
    """A tenant: its project file, and where its approvals, keys and audit stream are stored.

    `workspaces` are the folders on this machine in which clients of HTTP hooks work. With `record_requests`, the
    request of each decision is stored for `requests_days`, encrypted with the key in `requests_key_file`.
    Audit events older than `audit_days` are moved to files in the folder `audit_archive`.
    """

    project: ProjectPath
    store: ProjectStore
    engine: EngineName | None = None
    opa_url: str | None = None
    opa_token: SecretStr | None = None
    accept_unknown_opa: bool = False
    audit_key_file: ProjectPath | None = None
    record_requests: bool = False
    requests_key_file: ProjectPath | None = None
    requests_days: float = Field(30, gt=0, le=36_500)
    audit_days: float | None = Field(None, gt=0, le=36_500)
    audit_archive: ProjectPath | None = None
    webhooks: tuple[WebhookSettings, ...] = ()
    workspaces: tuple[ProjectPath, ...] = ()
    authzen: AuthzenSettings | None = None

    def model_post_init(self, _: Any) -> None:
        """Reject `opa_url` for the engine embedded, which does not use OPA, and recorded requests without a key."""
        if self.record_requests and self.requests_key_file is None:
            raise ValueError("record_requests: set requests_key_file; create a key with `openssl rand -hex 32`")
        if (self.audit_days is None) is not (self.audit_archive is None):
            raise ValueError("audit_days: set audit_archive, the folder for older events, as well, or neither")
        if self.engine == "embedded" and self.opa_url is not None:
            raise ValueError("opa_url: the engine embedded has no OPA; set `engine: sidecar` or remove opa_url")


class ServiceSettings(_FrozenSettings):
    """The settings of `pdp serve`. `read_settings` creates them.

    `store` is the database of access tokens; by default, the store of the tenant `default` or of the first tenant. The
    `X-Forwarded-...` headers of `proxies` are trusted. To serve other machines, configure TLS or `proxies`. The first
    tokens are written to `first_token_file`, or else printed. Files in `secrets_dir` contain other settings.
    """

    host: str = "127.0.0.1"
    port: int = Field(8181, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=64)
    public_url: PublicUrl | None = None
    tls_cert: ProjectPath | None = None
    tls_key: ProjectPath | None = None
    proxies: tuple[IPvAnyNetwork, ...] = ()
    tenants: dict[Annotated[str, Field(pattern=_TENANT)], TenantSettings] = {}
    store: ProjectStore | None = None
    first_token_file: ProjectPath | None = None
    secrets_dir: ProjectPath | None = None
    oidc: tuple[OidcSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None

    def model_post_init(self, _: Any) -> None:
        """Check settings that depend on each other, such as `tls_key` and `tls_cert`."""
        if not self.tenants:
            raise ValueError("tenants: add at least one tenant")
        for provider in self.oidc:
            if provider.tenant not in self.tenants:
                raise ValueError(f"oidc: {provider.issuer}: unknown tenant {provider.tenant}; add it to tenants")
        if len({provider.key for provider in self.oidc}) < len(self.oidc):
            raise ValueError("oidc: two entries have the same issuer, audience and tenant; merge them into one")
        clients = [provider.console for provider in self.oidc if provider.console is not None]
        if len(clients) > 1 and any(client.client_secret is None for client in clients):
            # Otherwise one provider could use the codes of another, because they share one redirect URI.
            raise ValueError("oidc: several providers have `console`: set client_secret for each of them")
        if self.tls_key and not self.tls_cert:
            raise ValueError("tls_key: set tls_cert as well")
        if not (is_this_machine(self.host) or self.tls_cert or self.proxies):
            raise ValueError(f"host: other machines can reach {self.host}: set tls_cert, or name a proxy in proxies")

    @property
    def url(self) -> str:
        """The URL that clients use, without a slash at the end."""
        scheme = "https" if self.tls_cert else "http"
        return (self.public_url or f"{scheme}://{self.host}:{self.port}").rstrip("/")


def read_settings(file: Path | None, options: dict[str, Any], *, variables: bool = True) -> ServiceSettings:
    """Read the settings from `options`, `variables` of the environment, secret files and a file; earlier ones win.

    Paths in the file are relative to its folder. Without tenants, the project of the current folder is the tenant
    `default`. A tenant without `store` has the store of its project, or `pdp.db` next to the project. Raises
    UsageError, or FileFaultsError if the file has faults.
    """
    document = Document("", "", Part({}, 1, 1)) if file is None else read_document(file)
    folder = Path() if file is None else file.parent
    values, overrides, origins = document.value, dict[str, Any](), dict[Any, str]()
    if isinstance(values, dict):
        overrides, origins = _overrides(folder, values, options, variables=variables)
        values = _overridden(values, overrides)
        values["tenants"] = values.get("tenants") or {DEFAULT_TENANT: {}}
        if isinstance(values["tenants"], dict):
            tenants = {name: _with_defaults(name, tenant, folder) for name, tenant in values["tenants"].items()}
            values["tenants"] = tenants
    try:
        return ServiceSettings.model_validate(values, context=folder)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            origin = _origin(overrides, origins, fault["loc"])
            if file is None or origin is not None:
                name = f"setting {'.'.join(map(str, fault['loc']))} ({origin})" if origin else "settings"
                why = "unknown" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
                raise UsageError(f"{name}: {why}", hint="see: pdp schema service") from None
        faults = [
            replace(fault, message=_masked(fault.message)) for fault in faults_of(error, document, ServiceSettings)
        ]
        raise FileFaultsError(
            [replace(fault, source="") if _SECRET.search(fault.message + fault.source) else fault for fault in faults]
        ) from None


def settings_lines(file: Path | None, options: dict[str, Any]) -> Iterator[str]:
    """Return the settings as lines of YAML, with the origin of each as a comment. Secrets are masked."""
    document = Document("", "", Part({}, 1, 1)) if file is None else read_document(file)
    overrides, origins = _overrides(Path() if file is None else file.parent, document.value, options)

    def lines(values: dict[str, Any], stated: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, value in values.items():
            here, start = (*path, name), "  " * len(path) + name
            own = stated.get(name) if isinstance(stated, dict) else None
            if isinstance(value, dict) and value:
                yield f"{start}:"
                yield from lines(value, own, here)
            else:
                place = "default" if own is None else f"{file}:{document.place(here).line}"
                yield f"{start}: {_masked(written_value(value))}  # {_origin(overrides, origins, here) or place}"

    return lines(read_settings(file, options).model_dump(mode="json"), document.value, ())


def _masked(text: str) -> str:
    return _MASKED.sub(lambda secret: "".join(filter(None, secret.groups())) + "***", text)


def _overrides(
    folder: Path, stated: dict[str, Any], options: dict[str, Any], *, variables: bool = True
) -> tuple[dict[str, Any], dict[Any, str]]:
    """Return the settings that override the `stated` ones of the file, and by path where each of them comes from."""
    model, named = cast("Any", ServiceSettings), list[tuple[str, str]]()
    values = options
    if variables:
        names = {name: f"variable {name}" for name in os.environ if name.startswith(PREFIX)}
        source = EnvSettingsSource(model, case_sensitive=False, env_prefix=PREFIX, env_nested_delimiter="__")
        values = _overridden(_loaded(source, names), options)
        named += names.items()
    secrets = values.get("secrets_dir", stated.get("secrets_dir"))
    if secrets and isinstance(secrets, str | Path):
        names = _secret_files(folder / secrets)
        source = NestedSecretsSettingsSource(model, folder / secrets, secrets_nested_delimiter="__")
        values = _overridden(_loaded(source, names), values)
        named = [*names.items(), *named]
    named += ((name, f"option --{name.removesuffix('_dir')}") for name in options if name != "tenants")
    for tenant, given in options.get("tenants", {}).items():
        named += ((f"tenants__{tenant}__{name}", f"option --{name}".replace("_", "-")) for name in given)
    return values, {_steps(name): origin for name, origin in named}


def _loaded(source: Callable[[], dict[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a source. Raise UsageError for an unknown name or malformed JSON, without the value."""
    for name, label in names.items():
        if (field := _steps(name)[0]) not in ServiceSettings.model_fields:
            raise UsageError(f"{label}: unknown setting", hint=nearest(field, ServiceSettings.model_fields))
    try:
        return source()
    except SettingsError as error:
        faulty = " or ".join(label for name, label in names.items() if _steps(name)[0] == str(error).split('"')[1])
        raise UsageError(f"{faulty}: the value is not valid JSON", hint='write a list as ["a", "b"]') from None


def _secret_files(folder: Path) -> dict[str, str]:
    """Return the names of secret files, with labels for messages. Raise UsageError for files that cannot be used."""
    file = folder
    try:
        files = [file for file in sorted(folder.iterdir()) if not file.name.startswith(".")]
        for file in files:
            is_own = file.is_file() and folder.resolve() in file.resolve().parents
            if not is_own or not 0 < len(file.read_text("utf-8").strip()) < MAX_BYTES:
                hint = "write the value of one setting into it; a link has to stay in this folder"
                raise UsageError(f"secret file {file}: is not a regular file with text, or a link", hint=hint)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "not text in UTF-8")
        raise UsageError(f"secrets {file}: cannot be read: {why}", hint="check --secrets and its files") from None
    return {file.name: f"secret file {file}" for file in files}


def _origin(overrides: Any, origins: Mapping[Any, str], path: tuple[int | str, ...]) -> str | None:
    """Return what states the value at a path, or a value that contains it; None if nothing overrides the file."""
    for step in path:
        if isinstance(overrides, dict):
            if step not in overrides:
                return None
            overrides = overrides[step]
    return next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), None)


def _steps(name: str) -> tuple[str, ...]:
    return tuple(name.removeprefix(PREFIX).lower().split("__"))


def _overridden(base: Any, overrides: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(overrides, dict)):
        return overrides
    return {**base, **{name: _overridden(base.get(name), value) for name, value in overrides.items()}}


def _with_defaults(name: str, tenant: Any, folder: Path) -> Any:
    if not isinstance(tenant, dict) or ("project" in tenant and "store" in tenant):
        return tenant
    if not tenant.keys() <= TenantSettings.model_fields.keys():
        # The model reports the unknown names, and one of them may be a misspelled `project`.
        return {"store": "", **tenant}
    file = folder / tenant["project"] if isinstance(tenant.get("project"), str | Path) else None
    if file is None and name == DEFAULT_TENANT:
        file = chosen_project()
        if file is None:
            raise UsageError("no project found in this folder", hint=f"name its {PROJECT_FILE} with --project")
    if file is None:
        return tenant
    beside = file.absolute().parent
    if Path(__file__).parents[1] in beside.resolve().parents:
        # For a project inside the installed package, the database is put into the working folder, because the package
        # must not be changed.
        beside = Path.cwd()
    if not file.is_file():
        raise UsageError(f"tenant {name}: project {file}: no such file", hint=f"name its {PROJECT_FILE} in `project`")
    store = tenant.get("store") or read_project(file).store or f"sqlite:///{beside / 'pdp.db'}"
    return {**tenant, "project": file.absolute(), "store": store}
