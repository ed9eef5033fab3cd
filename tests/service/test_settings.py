"""Settings come from a file. Variables override the file, and options override variables. Errors name the source."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pdp.errors import UsageError
from pdp.service.server import check_service
from pdp.service.settings import LimitSettings, ServiceSettings, TenantSettings, read_settings
from tests.support.command_line import written
from tests.support.payments import EXAMPLE
from tests.support.servers.certificates import certificate


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def fault(file: Path | None, options: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        read_settings(file, options)
    return str(caught.value)


def project(folder: Path, text: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    return written(folder / "pdp.yaml", text or "manifest: manifest.json")


def test_settings_use_the_project_in_the_working_folder_by_default(tmp_path: Path) -> None:
    file = project(tmp_path)

    assert read_settings(None, {}) == ServiceSettings(
        tenants={"default": TenantSettings(project=file, store=f"sqlite:///{tmp_path}/pdp.db")}
    )


def test_settings_use_the_store_of_the_project_by_default(tmp_path: Path) -> None:
    file = project(tmp_path / "there", "store: sqlite:///own.db")

    settings = read_settings(None, {"tenants": {"default": {"project": file}}})

    assert settings.tenants["default"].store == f"sqlite:///{tmp_path}/there/own.db"


def test_default_database_is_not_created_in_the_installation_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "pdp"
    shutil.copytree(EXAMPLE, installed / "data" / "payments")
    monkeypatch.setattr("pdp.service.settings.__file__", str(installed / "service" / "settings.py"))

    settings = read_settings(None, {"tenants": {"default": {"project": installed / "data/payments/pdp.yaml"}}})

    assert settings.tenants["default"].store == f"sqlite:///{tmp_path}/pdp.db"


def test_environment_variables_override_the_settings_file_and_options_override_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project(tmp_path)
    file = tmp_path / "etc" / "service.yaml"
    file.parent.mkdir()
    written(
        file,
        """
        port: 1
        workers: 2
        log_level: debug
        tls_cert: cert.pem
        limits: {batch: 5, page: 6}
        tenants: {default: {project: ../pdp.yaml, store: "sqlite:///a.db"}, other: {project: ../pdp.yaml}}
        """,
    )
    monkeypatch.setenv("PDP_SERVICE_PORT", "2")
    monkeypatch.setenv("PDP_SERVICE_WORKERS", "3")
    monkeypatch.setenv("PDP_SERVICE_LIMITS__PAGE", "7")
    monkeypatch.setenv("PDP_SERVICE_PROXIES", '["10.0.0.0/8"]')
    monkeypatch.setenv("PDP_SERVICE_TENANTS__DEFAULT__ENGINE", "sidecar")

    settings = read_settings(file, {"port": 3, "tenants": {"default": {"opa_url": "http://127.0.0.1:1"}}})

    assert settings == ServiceSettings(
        port=3,
        workers=3,
        log_level="debug",
        tls_cert=file.parent / "cert.pem",
        proxies=("10.0.0.0/8",),
        limits=LimitSettings(batch=5, page=7),
        tenants={
            "default": TenantSettings(
                project=file.parent / "../pdp.yaml",
                store=f"sqlite:///{file.parent}/a.db",
                engine="sidecar",
                opa_url="http://127.0.0.1:1",
            ),
            "other": TenantSettings(project=file.parent / "../pdp.yaml", store=f"sqlite:///{file.parent}/../pdp.db"),
        },
    )


def test_paths_in_the_settings_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    stated = {"project": "pdp.yaml", "store": "sqlite:///a.db", "audit_key_file": "key"}
    file = written(tmp_path / "etc/service.json", {"tenants": {"default": stated}, "tls_cert": "c", "tls_key": "k"})

    settings = read_settings(file, {})

    read = settings.tenants["default"]
    paths = read.project, read.audit_key_file, settings.tls_cert, settings.tls_key
    assert paths == tuple(tmp_path / "etc" / name for name in ("pdp.yaml", "key", "c", "k"))


def test_faults_in_the_settings_file_have_locations(tmp_path: Path) -> None:
    project(tmp_path)
    file = written(Path("service.yaml"), "prt: 1\nport: 70000\ntenants:\n  default:\n    engine: fast\n  B: {}\n")

    assert fault(file, {}) == (
        "service.yaml:1:1: unknown key `prt`\n    prt: 1\n    ^\n    hint: did you mean `port`?\n"
        "service.yaml:2:7: `port` must be at most 65535, not `70000`\n    port: 70000\n          ^\n"
        "service.yaml:5:13: `tenants.default.engine` must be one of embedded, sidecar, not `fast`\n"
        "        engine: fast\n                ^\n"
        "service.yaml:6:3: key `B` must have the form ^[a-z0-9][a-z0-9-]{0,62}$, not `B`\n"
        "      B: {}\n      ^\n"
        "service.yaml:6:6: `tenants.B.project` is missing\n      B: {}\n         ^\n"
        "service.yaml:6:6: `tenants.B.store` is missing\n      B: {}\n         ^"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "the file must be a mapping, not a list"),
        ("tenants: 1", "`tenants` must be a mapping, not `1`"),
        ("tenants: {default: 1}", "`tenants.default` must be a mapping, not `1`"),
        ("_env_file: x", "unknown key `_env_file`"),
    ],
)
def test_settings_file_with_a_wrong_structure_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    project(tmp_path)

    assert message in fault(written(Path("service.yaml"), text), {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "PDP_SERVICE_PRT",
            "1",
            "variable PDP_SERVICE_PRT: unknown setting (did you mean `PDP_SERVICE_PORT`?)",
        ),
        ("PDP_SERVICE_PORT", "x", "setting port (PDP_SERVICE_PORT or its option): Input should be a valid integer"),
        ("PDP_SERVICE_LIMITS__PGE", "1", "setting limits.pge (PDP_SERVICE_LIMITS__PGE or its option): unknown"),
        ("PDP_SERVICE_OIDC", "[", "variable PDP_SERVICE_OIDC: the value is not valid JSON"),
    ],
)
@pytest.mark.parametrize("configured", [True, False])
def test_message_about_a_faulty_variable_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, message: str, configured: bool
) -> None:
    project(tmp_path)
    monkeypatch.setenv(name, value)

    assert fault(written(Path("service.yaml"), "workers: 1") if configured else None, {}).startswith(message)


def test_settings_without_a_project_are_an_error() -> None:
    assert fault(None, {}) == "no project found in this folder (name its pdp.yaml with --project)"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "pdp.example"])  # noqa: S104 - the test expects an error
def test_interface_other_than_loopback_requires_tls_or_a_proxy(tmp_path: Path, host: str) -> None:
    project(tmp_path)

    assert f"host: other machines can reach {host}: set tls_cert, or name a proxy in proxies" in fault(
        None, {"host": host}
    )
    assert read_settings(None, {"host": host, "tls_cert": tmp_path}).host == host
    assert read_settings(None, {"host": host, "proxies": ["10.1.2.4"]}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_interface_needs_no_tls(tmp_path: Path, host: str) -> None:
    project(tmp_path)

    assert read_settings(None, {"host": host}).host == host


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_key": Path("key.pem")}, "tls_key: set tls_cert as well"),
        ({"proxies": ["*"]}, "value is not a valid IPv4 or IPv6 network"),
        ({"public_url": "http://pdp.example"}, "must be https://HOST"),
        ({"public_url": "https://ann:secret@pdp.example"}, "must be https://HOST"),
        (
            {"otlp_endpoint": "127.0.0.1:4318"},
            "setting otlp_endpoint (PDP_SERVICE_OTLP_ENDPOINT or its option): String should match pattern '^https?://",
        ),
        (
            {"tenants": {"default": {"engine": "embedded", "opa_url": "http://x"}}},
            "opa_url: the engine embedded has no OPA; set `engine: sidecar`",
        ),
        ({"port": 65536}, "less than or equal to 65535"),
        ({"workers": 0}, "greater than or equal to 1"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    project(tmp_path)

    assert message in fault(None, options)


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("none.pem", None, "tls_cert none.pem: cannot be read: No such file or directory (check the path)"),
        ("text.pem", "key.pem", "tls_cert text.pem: no certificate in PEM form (BEGIN CERTIFICATE)"),
        ("cert.pem", "text.pem", "tls_key text.pem: no private key in PEM form (BEGIN PRIVATE KEY)"),
        ("cert.pem", None, "tls_key cert.pem: no private key in PEM form (BEGIN PRIVATE KEY)"),
        ("cert.pem", "other.pem", "tls_cert cert.pem, tls_key other.pem: cannot be loaded: the key belongs to another"),
        ("broken.pem", "key.pem", "tls_cert broken.pem, tls_key key.pem: cannot be loaded: damaged, or a key with a"),
    ],
)
def test_error_names_an_unusable_tls_file(tmp_path: Path, cert: str, key: str | None, message: str) -> None:
    project(tmp_path)
    certificate(tmp_path, "other.example")[1].rename("other.pem")
    certificate(tmp_path, "localhost")
    written(Path("text.pem"), "no certificate")
    written(Path("broken.pem"), "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n")

    with pytest.raises(UsageError) as caught:
        check_service(read_settings(None, {"tls_cert": cert, "tls_key": key}))

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("secret", ["whsec_abc", "whsec_%%%", "whsec_\u00e9"])
def test_webhook_secret_that_is_not_base64_is_explained(tmp_path: Path, secret: str) -> None:
    project(tmp_path)
    webhook = {"url": "https://inbox.example", "secret": secret}

    message = fault(None, {"tenants": {"default": {"webhooks": [webhook]}}})

    assert "webhooks.0.secret" in message
    assert "has no valid base64 after `whsec_`; create a secret with: echo whsec_$(openssl rand -base64 24)" in message
