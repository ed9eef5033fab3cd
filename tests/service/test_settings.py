"""Settings come from a file. Variables override the file, and options override variables. Errors name the source."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.errors import UsageError
from pdp.service.server import check_service
from pdp.service.settings import LimitSettings, ServiceSettings, TenantSettings, read_settings
from tests.support.command_line import pdp, written
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
            "variable PDP_SERVICE_PRT: unknown setting (did you mean `port`?)",
        ),
        ("PDP_SERVICE_PORT", "x", "setting port (variable PDP_SERVICE_PORT): Input should be a valid integer"),
        ("PDP_SERVICE_LIMITS__PGE", "1", "setting limits.pge (variable PDP_SERVICE_LIMITS__PGE): unknown"),
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


def test_misspelled_or_missing_project_of_a_tenant_is_named(tmp_path: Path) -> None:
    misspelled = written(tmp_path / "service.yaml", "tenants: {default: {projct: pdp.yaml}}")
    absent = written(tmp_path / "absent.yaml", "tenants: {default: {project: nowhere/pdp.yaml}}")

    assert "unknown key `projct`" in fault(misspelled, {})
    assert fault(absent, {}) == (
        f"tenant default: project {tmp_path}/nowhere/pdp.yaml: no such file (name its pdp.yaml in `project`)"
    )


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
            "setting otlp_endpoint (option --otlp_endpoint): String should match pattern '^https?://",
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
        (
            "cert.pem",
            "other.pem",
            "tls_key other.pem: belongs to another certificate than the first one in tls_cert",
        ),
        ("broken.pem", "key.pem", "tls_cert broken.pem: is damaged: it cannot be decoded"),
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


def test_password_of_a_key_is_not_asked_for_and_an_expired_certificate_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project(tmp_path)
    _, key = certificate(tmp_path, "localhost", valid_from=-2)
    with pytest.raises(
        UsageError, match="manifest"
    ):  # The project of this test has no manifest, which is noticed after TLS.
        check_service(read_settings(None, {"tls_cert": "cert.pem", "tls_key": "key.pem"}))
    key.write_text(key.read_text().replace("PRIVATE", "ENCRYPTED PRIVATE"))
    with pytest.raises(UsageError) as caught:
        check_service(read_settings(None, {"tls_cert": "cert.pem", "tls_key": "key.pem"}))

    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.fullmatch(r"tls_cert cert.pem is valid from \S+ \S+ to \S+ \S+: clients reject it; replace it", message)
    assert str(caught.value) == "tls_key key.pem: has a password (remove it: openssl pkey -in key.pem -out FILE)"


def test_fault_in_the_settings_file_does_not_show_a_secret(tmp_path: Path) -> None:
    project(tmp_path)
    settings = (
        "public_url: https://ann:hidden@h",
        "tenants: {default: {webhooks: [{url: 'https://a.example/hidden', secret: 'hidden'}]}}",
        "tenants:\n  default:\n    webhooks:\n      - url: https://a.example\n        secret:\n          hidden",
    )  # fmt: skip
    for text in settings:
        shown = fault(written(Path("service.yaml"), text), {})
        assert shown.startswith("service.yaml:")
        assert "hidden" not in shown


@pytest.mark.parametrize("secret", ["whsec_abc", "whsec_%%%", "whsec_\u00e9", "whsec_YWJj YWJj"])
def test_webhook_secret_that_is_not_base64_is_explained(tmp_path: Path, secret: str) -> None:
    project(tmp_path)
    webhook = {"url": "https://inbox.example", "secret": secret}

    message = fault(None, {"tenants": {"default": {"webhooks": [webhook]}}})

    assert "webhooks.0.secret" in message
    assert "has no valid base64 after `whsec_`; create a secret with: echo whsec_$(openssl rand -base64 24)" in message


def test_folder_for_older_audit_events_must_be_set_and_writable(tmp_path: Path) -> None:
    tenant: dict[str, Any] = {"project": EXAMPLE / "pdp.yaml", "store": f"sqlite:///{tmp_path}/pdp.db"}
    for part in ({"audit_days": 1}, {"audit_archive": tmp_path}):
        message = fault(None, {"tenants": {"default": {**tenant, **part}}})
        assert "audit_days: set audit_archive, the folder for older events, as well, or neither" in message

    both = {**tenant, "audit_days": 1, "audit_archive": tmp_path / "missing"}
    with pytest.raises(UsageError, match="missing: No such file or directory"):
        check_service(read_settings(None, {"tenants": {"default": both}}))


def test_secret_files_override_the_settings_file_and_variables_override_secret_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = project(tmp_path)
    # Kubernetes mounts a secret as links to a folder whose name begins with two dots.
    (tmp_path / "secrets/..data").mkdir(parents=True)
    secrets = {
        "tenants__default__store": 'postgresql://pdp:s3:cr@ "et@db/pdp?password=hidden\n',
        "tenants__default__webhooks": '[{"url": "https://a.example/hidden", "secret": "hidden-hidden-hidden-hidden"}]',
        "workers": " 2\n", "LIMITS__page": "8", "limits": '{"batch": 6}', "log_level": "error",
    }  # fmt: skip
    for name, text in secrets.items():
        (tmp_path / "secrets/..data" / name).write_text(text)
        (tmp_path / "secrets" / name).symlink_to(Path("..data", name))
    config = written(Path("service.yaml"), "workers: 1\nlimits:\n  batch: 5\n  burst: 9\nlog_level: info\n")
    monkeypatch.setenv("PDP_SERVICE_LIMITS__BATCH", "7")
    monkeypatch.setenv("PDP_SERVICE_SECRETS_DIR", "secrets")

    settings = read_settings(config, {"log_level": "debug"})
    printed = pdp("serve", "--config", config, "--print-config", "--port", 1, "--project", file)

    tenant = settings.tenants["default"]
    assert (settings.workers, settings.log_level) == (2, "debug")
    assert settings.limits == LimitSettings(batch=7, page=8, burst=9)
    assert (tenant.store, len(tenant.webhooks)) == (secrets["tenants__default__store"].strip(), 1)
    assert (printed.code, printed.err, "hidden" in printed.out, "et@db" in printed.out) == (0, "", False, False)
    lines = set(printed.out.splitlines())
    shown = yaml.safe_load(printed.out)
    assert (shown["tenants"]["default"]["project"], shown["limits"]["page"]) == (str(file), 8)
    assert lines >= {
        'host: "127.0.0.1"  # default',
        "port: 1  # option --port",
        "workers: 2  # secret file secrets/workers",
        f'    project: "{file}"  # option --project',
        '    store: "postgresql://pdp:***@db/pdp?password=***"  # secret file secrets/tenants__default__store',
        "  batch: 7  # variable PDP_SERVICE_LIMITS__BATCH",
        "  page: 8  # secret file secrets/LIMITS__page",
        "  burst: 9  # service.yaml:4",
        'secrets_dir: "secrets"  # variable PDP_SERVICE_SECRETS_DIR',
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("prt", b"s3cret", "secret file {file}: unknown setting (did you mean `port`?)"),
        ("port", b"s3cret", "setting port (secret file {file}): Input should be a valid integer"),
        ("limits__pge", b"s3cret", "setting limits.pge (secret file {file}): unknown"),
        ("oidc", b"[s3cret", "secret file {file}: the value is not valid JSON"),
        ("store", b" \n", "secret file {file}: is not a regular file with text, or a link"),
        ("host", None, "secret file {file}: is not a regular file with text, or a link"),
        ("store", b"\xffs3cret", "secrets {file}: cannot be read: not text in UTF-8"),
        (
            "tenants__default__webhooks",
            b'[{"url": "https://a.example", "secret": "s3cret s3cret s3cret s3cret "}]',
            "setting tenants.default.webhooks.0.secret (secret file {file}): begins or ends with a blank or line break",
        ),
    ],
)
@pytest.mark.parametrize("configured", [True, False])
def test_message_about_a_faulty_secret_file_names_the_file_but_not_its_content(
    tmp_path: Path, name: str, content: bytes | None, message: str, configured: bool
) -> None:
    project(tmp_path)
    (tmp_path / "secrets").mkdir()
    file = tmp_path / "secrets" / name
    if content is None:
        file.symlink_to(written(tmp_path / "outside", "s3cret"))
    else:
        file.write_bytes(content)
    config = written(Path("service.yaml"), "workers: 1") if configured else None

    told = fault(config, {"secrets_dir": tmp_path / "secrets"})

    assert told.startswith(message.format(file=file))
    assert "s3cret" not in told


def test_missing_folder_of_secrets_is_an_error(tmp_path: Path) -> None:
    project(tmp_path)

    assert fault(None, {"secrets_dir": tmp_path / "none"}) == (
        f"secrets {tmp_path}/none: cannot be read: No such file or directory (check --secrets and its files)"
    )
