"""A hook reads its policy folder only if all files in the folder are valid and safe."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pdp.errors import UsageError
from pdp.hooks.home import open_policy
from pdp.hooks.shapes import shapes
from pdp.hooks.starter import starter_files

PROJECT = starter_files("alice")["pdp.yaml"].decode()
INCOMPLETE = "{file}: has `policies`, or no `session` or `store` (name bundle, session and store)"
ELSEWHERE = "{file}: {path} is not in {home} (keep the files of the policy in this folder)"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    for name, content in starter_files("alice").items():
        (home / name).write_bytes(content)
    return home


def refusal(home: Path) -> str:
    with ExitStack() as owned, pytest.raises(UsageError) as raised:
        open_policy(home, owned)
    return str(raised.value)


def test_starter_policy_of_hooks_can_be_opened(home: Path) -> None:
    with ExitStack() as owned:
        policy = open_policy(home, owned)
        assert (policy.home, policy.session.claims["sub"], policy.commands["pwd"]) == (home, "alice", shapes("pwd"))
        assert len(policy.digest) == 64
    assert (home / "state" / "store.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", ["data: [../x.json]", "bundle: state/x.tar.gz", "bundle: /x.tar.gz"])
def test_policy_file_outside_of_home_is_an_error(home: Path, line: str) -> None:
    (home / "pdp.yaml").write_text(f"{PROJECT}{line}\n")
    path = home / line.split(": ")[1].strip("[]")
    assert refusal(home) == ELSEWHERE.format(file=home / "pdp.yaml", path=path, home=home)


@pytest.mark.parametrize("field", ["session", "store"])
def test_hook_policy_without_a_session_or_store_is_an_error(home: Path, field: str) -> None:
    (home / "pdp.yaml").write_text("\n".join(line for line in PROJECT.splitlines() if not line.startswith(field)))
    assert refusal(home) == INCOMPLETE.format(file=home / "pdp.yaml")


def test_hook_policy_with_rego_files_is_an_error(home: Path) -> None:
    (home / "pdp.yaml").write_text(f"{PROJECT}policies: [x.rego]\n")
    assert refusal(home) == INCOMPLETE.format(file=home / "pdp.yaml")


def test_policy_files_that_change_while_being_read_are_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["a" * 64, "b" * 64])
    monkeypatch.setattr("pdp.hooks.home.policy_digest", lambda _: next(digests))
    assert refusal(home) == f"{home}: the policy's files are being written (try again)"


def test_missing_policy_folder_is_an_error(tmp_path: Path) -> None:
    home = tmp_path / "none"
    assert refusal(home) == f"{home}: [Errno 2] No such file or directory: '{home}'"


def test_faults_in_policy_files_have_locations(home: Path) -> None:
    (home / "commands.yaml").write_text("runs: [pwd, 5]\nonce_a_run: all\nrun: []\n")
    file = home / "commands.yaml"
    assert [line for line in refusal(home).split("\n") if not line.startswith(" ")] == [
        f"{file}:1:13: `runs[1]` must be a string, not `5`",
        f"{file}:2:13: `once_a_run` must be a list, not `all`",
        f"{file}:3:1: unknown key `run`",
    ]
