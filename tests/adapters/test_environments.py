"""`scripts/adapters` builds an environment for each adapter and chooses the adapters that a CI run tests."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.adapter_environments import environment, files_of, main
from scripts.rotation import chosen

pytestmark = pytest.mark.process

FILES = {name: files_of(name) for name in ("a", "b", "c", "d", "e")}
DAY = 86400


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    return tmp_path


def git(root: Path, *words: str, at: int = 0) -> None:
    """Run git. Commits get the time `at`, in seconds after the start of 2026."""
    when = f"{1767225600 + at} +0000"
    person = {f"GIT_{who}_{what}": "one" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environ = {**os.environ, **person, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    subprocess.run(["git", *words], cwd=root, env=environ, check=True)


def commit(root: Path, path: str, at: int = 0) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{path} at {at}\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", path, at=at)


def test_ci_run_tests_adapters_changed_in_the_last_day(repository: Path) -> None:
    for at, path in enumerate(["tests/adapters/a/one.py", "pdp/adapters/b.py"]):
        commit(repository, path, at)
    for at, path in enumerate(
        ["examples/frameworks/c_payments.py", "tests/adapters/d/deep/one.py", "pdp/adapters/ee.py"]
    ):
        commit(repository, path, DAY + 2 + at)

    assert chosen(repository, FILES, 0) == ["c", "d"]


def test_ci_run_tests_all_adapters_if_the_guard_changed(repository: Path) -> None:
    commit(repository, "pdp/adapters/guard/outcome.py")

    assert chosen(repository, FILES, 2) == list(FILES)


def test_ci_run_tests_changed_adapters_and_some_other_adapters_in_turn(repository: Path) -> None:
    commit(repository, "pdp/adapters/a.py")
    turns = []
    for at in range(5):
        commit(repository, f"{at}.txt", at)
        turns.append(chosen(repository, FILES, 2))

    assert turns == [["a", "b", "e"], ["a", "b", "c"], ["a", "d", "e"], ["a", "b", "c"], ["a", "c", "d"]]
    assert chosen(repository, FILES, 2) == turns[-1]


def test_ci_run_tests_the_first_adapters_if_git_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(tmp_path, FILES, 2) == ["a", "b"]
    monkeypatch.setenv("PATH", "")
    assert chosen(tmp_path, FILES, 2) == ["a", "b"]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "locks/one.txt"
    file.parent.mkdir()
    file.touch()
    return file


def test_concurrent_builds_create_one_environment(lock: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"

    with ThreadPoolExecutor(2) as threads:
        pythons = list(threads.map(lambda _: environment("one", lock, (base,)), range(2)))

    assert pythons[0] == pythons[1]
    assert subprocess.run([pythons[0], "-c", ""], check=False).returncode == 0
    assert list(base.iterdir()) == [pythons[0].parents[1]]


def test_adapter_environment_is_removed_after_a_week_without_use(lock: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    for name, days in {"one-idle": 8, "one-used": 6, "two-idle": 8, "one-0123.half": 8}.items():
        (base / name).mkdir(parents=True)
        os.utime(base / name, (0, time.time() - days * DAY))

    made = environment("one", lock, (base,)).parents[1].name

    assert {each.name for each in base.iterdir()} == {made, "one-used", "two-idle"}


def test_environment_whose_python_is_missing_is_built_again(lock: Path, tmp_path: Path) -> None:
    python = environment("one", lock, (tmp_path,))
    python.unlink()

    assert environment("one", lock, (tmp_path,)) == python
    assert python.exists()


def test_environments_are_read_from_a_read_only_cache_and_built_in_a_writable_cache(lock: Path, tmp_path: Path) -> None:
    cache, own = tmp_path / "cache", tmp_path / "own"
    cache.touch()
    written = environment("one", lock, (cache, own))
    cache.unlink()
    own.rename(cache)

    assert written.is_relative_to(own)
    assert environment("one", lock, (cache, own)).is_relative_to(cache)


def test_failed_installation_leaves_no_files(lock: Path, tmp_path: Path) -> None:
    lock.write_text("no requirement\n")

    with pytest.raises(subprocess.CalledProcessError):
        environment("one", lock, (tmp_path / "base",))

    assert list((tmp_path / "base").iterdir()) == []


@pytest.mark.parametrize("option", ["--changed", "--newest", "--table", "--lock", "--python"])
def test_option_changed_tests_no_adapter_if_no_adapter_changed(
    option: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(repository, "README.md")
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))

    assert (main(["--changed", option]), capsys.readouterr().out) == (0, "")


def test_adapter_without_a_lock_file_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["langchain", "langchian"])

    said = "scripts/adapters: error: unknown adapter: langchian; choose from agent_framework, crew"
    assert said in capsys.readouterr().err
