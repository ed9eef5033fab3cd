"""The unit file for systemd is valid, and its commands work."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, written
from tests.support.payments import EXAMPLE

UNIT = (ROOT / "deploy/systemd/pdp.service").read_text()


def test_systemd_accepts_the_unit_and_rates_it_as_locked_down(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = written(tmp_path / "pdp.service", UNIT.replace("/opt/pdp/bin/pdp", "/bin/true"))
    for command in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *command, unit], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert (done.returncode, "pdp.service:" in done.stderr) == (0, False), done.stdout + done.stderr


@pytest.mark.process
def test_commands_of_the_unit_migrate_the_store_and_accept_the_settings(tmp_path: Path) -> None:
    pdp = written(tmp_path / "pdp", f'#!/bin/sh\nexec "{sys.executable}" -m pdp "$@"\n')
    pdp.chmod(0o755)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    written(tmp_path / "service.yaml", {"tenants": {"default": {"project": str(EXAMPLE / "pdp.yaml")}}})
    for name in re.findall(r"^LoadCredential=(\w+):/etc/pdp/secrets/\1$", UNIT, re.MULTILINE):
        written(credentials / name, f"sqlite:///{tmp_path}/pdp.db\n")
    commands = re.findall(r"^ExecStart(?:Pre)?=(.*)", UNIT, re.MULTILINE)
    places = {"/opt/pdp/bin/pdp": str(pdp), "%d": str(credentials), "/etc/pdp": str(tmp_path)}
    for command in (commands[0], f"{commands[1]} --check-config"):
        for inside, outside in places.items():
            command = command.replace(inside, outside)  # noqa: PLW2901 - one place after another
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE,
            env=environment(CREDENTIALS_DIRECTORY=str(credentials)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    assert (tmp_path / "pdp.db").exists()
    assert len(commands) == 2
