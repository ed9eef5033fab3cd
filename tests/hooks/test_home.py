"""The policy of a folder: what is refused of it, before any call is decided."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pdp.errors import UsageError
from pdp.hooks.home import open_policy
from pdp.hooks.starter import starter_files

PROJECT = starter_files("alice")["pdp.yaml"].decode()
INCOMPLETE = "{file}: states policies, or no session or store (name bundle, session and store)"
ELSEWHERE = "{file}: {path} is not in {home} (keep all that decides in this folder)"


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


def test_the_starter_decides(home: Path) -> None:
    with ExitStack() as owned:
        policy = open_policy(home, owned)
        assert (policy.home, policy.session.claims["sub"], policy.commands["pwd"]) == (home, "alice", ())
        assert len(policy.digest) == 64
    assert (home / "state" / "store.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", ["data: [../x.json]", "bundle: state/x.tar.gz", "bundle: /x.tar.gz"])
def test_what_lies_elsewhere_is_refused(home: Path, line: str) -> None:
    (home / "pdp.yaml").write_text(f"{PROJECT}{line}\n")
    path = home / line.split(": ")[1].strip("[]")
    assert refusal(home) == ELSEWHERE.format(file=home / "pdp.yaml", path=path, home=home)


@pytest.mark.parametrize("field", ["session", "store"])
def test_a_project_without_a_session_or_store_is_refused(home: Path, field: str) -> None:
    (home / "pdp.yaml").write_text("\n".join(line for line in PROJECT.splitlines() if not line.startswith(field)))
    assert refusal(home) == INCOMPLETE.format(file=home / "pdp.yaml")


def test_policies_as_rego_are_refused(home: Path) -> None:
    (home / "pdp.yaml").write_text(f"{PROJECT}policies: [x.rego]\n")
    assert refusal(home) == INCOMPLETE.format(file=home / "pdp.yaml")


def test_files_that_change_while_they_are_read_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["a" * 64, "b" * 64])
    monkeypatch.setattr("pdp.hooks.home.policy_digest", lambda _: next(digests))
    assert refusal(home) == f"{home}: its files are being written (try again)"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "none"
    assert refusal(home) == f"{home}: [Errno 2] No such file or directory: '{home}'"


def test_every_fault_of_a_file_has_its_place(home: Path) -> None:
    (home / "commands.yaml").write_text("git: [status, 5]\nls: all\n")
    file = home / "commands.yaml"
    assert [line for line in refusal(home).split("\n") if not line.startswith(" ")] == [
        f"{file}:1:15: `git[1]` must be a string, not `5`",
        f"{file}:2:5: `ls` must be a list, not `all`",
    ]


@pytest.mark.parametrize(
    ("line", "column", "said"),
    [
        ("git status: []", 1, "key `git status` can match nothing: it is not one word as a shell reads it"),
        ("'g*t': []", 1, "key `g*t` can match nothing"),
        ("then: []", 1, "key `then` can match nothing"),
        ('pytest: ["*", -q]', 10, "`pytest[0]` can match nothing"),
        ("pytest: [tests/**]", 10, "`pytest[0]` can match nothing"),
        ("git: [$HOME]", 7, "`git[0]` can match nothing"),
        ('git: ["a\'b\\""]', 7, "`git[0]` can match nothing"),
    ],
)
def test_a_command_that_can_match_nothing_is_a_fault(home: Path, line: str, column: int, said: str) -> None:
    (home / "commands.yaml").write_text(f"{line}\n")
    assert refusal(home).startswith(f"{home}/commands.yaml:1:{column}: {said}")
