"""The page of releases shows the bundle that decides, and says what it does not know."""

import shutil
from pathlib import Path

import pytest

from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.signature import KEYS_VARIABLE, load_public_keys
from tests.service.console import signed_in, words_of
from tests.support import ROOT
from tests.support.command_line import pdp
from tests.support.payments import EXAMPLE
from tests.support.service import service, tenant_on

PAYMENTS = ROOT / "bundles/payments.tar.gz"


async def test_page_shows_bundle_and_manifest_and_what_is_unknown(tmp_path: Path) -> None:
    bundle = read_bundle(PAYMENTS)
    async with service(tmp_path) as served:
        page = words_of(await (await signed_in(served, ["approve"])).get("releases"))

        assert f"Release {bundle.release} Revision {bundle.revision} Engine embedded" in page
        assert f"Source the file {PAYMENTS}" in page
        assert "Signature not signed" in page
        assert f"Digest {served.service.tenants['default'].pep.manifest.digest} Tools 3" in page
        assert "Earlier releases are not known" in page
        assert "Bundles carry no figures about coverage and mutation" in page
        assert (await (await signed_in(served, ["decide", "propose"])).get("releases")).status_code == 403


async def test_page_shows_signature_and_history_of_a_published_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, repository = tmp_path / "key.pem", tmp_path / "releases"
    pdp("bundle", "keygen", "-o", key)
    pdp("bundle", "sign", PAYMENTS, "-o", tmp_path / "signed.tar.gz", "--private-key", key)
    done = pdp(
        "bundle", "publish", tmp_path / "signed.tar.gz", repository, "--channel", "live", "--no-gate",
        "--why", "first <release>", "--by", "ann", "--audit", tmp_path / "audit.jsonl", "--public-key", f"{key}.pub",
    )  # fmt: skip
    assert done.code == 0, done.err
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    (project / "pdp.yaml").write_text(
        "manifest: manifest.json\ngovernance: governance.yaml\nbundle: ../releases/channels/live.tar.gz\n"
    )
    url = f"sqlite:///{tmp_path}/pdp.db"
    tenants = {"default": {**tenant_on(url), "project": project / "pdp.yaml"}}
    async with service(tmp_path, url=url, tenants=tenants) as served:
        visitor = await signed_in(served, ["audit"])
        claimed = words_of(await visitor.get("releases"))
        monkeypatch.setenv(KEYS_VARIABLE, load_public_keys([Path(f"{key}.pub")])[0].pem)
        verified = words_of(await visitor.get("releases"))
        shutil.copy(ROOT / "bundles/baseline.tar.gz", repository / "channels/live.tar.gz")
        replaced = words_of(await visitor.get("releases"))
        (repository / "channels/live.tar.gz").unlink()
        gone = await visitor.get("releases")

    assert "but it is not verified: PDP_VERIFICATION_KEYS is not set" in claimed
    assert "verified with PDP_VERIFICATION_KEYS" in verified
    assert "publish ann first <release>" in verified
    assert "The file now holds another bundle than the one that decides." in replaced
    assert "cannot be read" in words_of(gone)
