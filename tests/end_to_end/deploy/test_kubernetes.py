"""The Helm chart and the manifests for Kubernetes. Charts are rendered where `helm` is installed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml

from pdp.service.settings import read_settings
from tests.support import PATIENCE, ROOT
from tests.support.command_line import written
from tests.support.payments import EXAMPLE
from tests.support.servers.opa import free_port, opa_process

CHART = ROOT / "deploy/helm/pdp"
TOKEN = "a-token-of-the-test"  # noqa: S105 - a token for tests
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "monitored": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "embedded": {"opa": {"enabled": False}, "migrate": False, "networkPolicy": {"enabled": False}},
    "behind a proxy": {
        "secrets": {"tls": "", "keys": ""}, "settings": {"proxies": ["10.0.0.0/8"]},
        "networkPolicy": {"database": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "egress": [{"ports": [{"port": 443}]}]},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        pytest.param({}, True, id="defaults"),
        pytest.param({"secrets": {**VALUES["secrets"], "tls": ""}}, False, id="neither TLS nor a proxy"),
        pytest.param({"image": {"repository": "tool-pdp", "digest": "latest"}}, False, id="a digest that is none"),
        pytest.param({"replicaCount": 2}, False, id="an unknown value"),
    ],
)
def test_schema_of_the_values_rejects_faults(changes: dict[str, Any], is_valid: bool) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert jsonschema_rs.is_valid(schema, {**VALUES, **changes}) is is_valid


@pytest.mark.process
@pytest.mark.parametrize("name", VARIANTS)
def test_chart_renders_a_locked_down_service_with_valid_settings(name: str, tmp_path: Path) -> None:
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    values = written(tmp_path / "values.yaml", VARIANTS[name])
    linted, rendered = (
        subprocess.run(
            ["helm", *command, CHART, "--kube-version", "1.34", "--values", values],
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )
        for command in (["lint", "--strict"], ["template", "pdp"])
    )  # fmt: skip
    assert (linted.returncode, rendered.returncode) == (0, 0), linted.stdout + rendered.stderr

    documents = {each["kind"]: each for each in yaml.safe_load_all(rendered.stdout)}
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    [pdp], sidecars = pod["containers"], pod.get("initContainers", [])
    config = yaml.safe_load(documents["ConfigMap"]["data"]["service.yaml"])
    config["tenants"]["default"]["project"] = str(EXAMPLE / "pdp.yaml")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    written(secrets / "tenants__default__store", "postgresql://pdp@postgres/pdp")
    settings = read_settings(written(tmp_path / "service.yaml", config), {"secrets_dir": secrets})
    files = (settings.tls_cert, settings.first_token_file, settings.tenants["default"].audit_key_file)

    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in (pdp, *sidecars))
    assert pod["securityContext"]["runAsNonRoot"]
    assert [each["restartPolicy"] for each in sidecars] == ["Always"] * (name != "embedded")
    mounted = {mount["name"] for each in sidecars for mount in each["volumeMounts"]}
    assert not mounted & {"settings", "keys", "tls"}
    assert {str(file.parent) for file in files if file} <= {mount["mountPath"] for mount in pdp["volumeMounts"]}
    assert ("groups" in documents.get("PrometheusRule", {}).get("spec", {})) is (name == "monitored")


@pytest.mark.opa
def test_opa_of_the_example_answers_decisions_for_the_token_alone(opa: Path) -> None:
    pod = yaml.safe_load((ROOT / "deploy/kubernetes/sidecar.yaml").read_text())["spec"]["template"]["spec"]
    [sidecar] = pod["initContainers"]
    with free_port() as health:
        places = {
            "0.0.0.0:8282": f"127.0.0.1:{health}", "127.0.0.1:8181": "127.0.0.1:{port}",
            "/policy/bundle.tar.gz": str(ROOT / "bundles/payments.tar.gz"),
            "/policy/authz.rego": str(ROOT / "deploy/authz.rego"),
        }  # fmt: skip
        arguments = "\n".join(sidecar["args"])
        for inside, outside in places.items():
            arguments = arguments.replace(inside, outside)
        with opa_process(*arguments.split("\n"), PDP_OPA_TOKEN=TOKEN) as client:
            client.wait_for_ready(PATIENCE, 0.02, {"bundles": "true"})
            decision = f"http://127.0.0.1:{client.port}/v1/data/authz/decision"
            headers = [{}, {"Authorization": "Bearer another"}, {"Authorization": f"Bearer {TOKEN}"}]
            decisions = [httpx.post(decision, json={"input": {}}, headers=each).status_code for each in headers]
            urls = [f"http://127.0.0.1:{health}{path}" for path in ("/health?bundle", "/v1/data")]
            seen = [httpx.get(url).status_code for url in urls]

    assert decisions == [401, 401, 200]
    assert seen == [200, 401]
