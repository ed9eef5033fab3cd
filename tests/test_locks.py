"""The lock files contain each package that pyproject.toml requires, in an accepted version."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
CORE: list[str] = PROJECT["project"]["dependencies"]
RENEW = "run scripts/lock --keep"
INSTALLED = {
    "user": [*CORE, "tool-pdp[all]", *GROUPS["build"]],
    "dev": [*CORE, "tool-pdp[all]", *GROUPS["build"], *GROUPS["dev"]],
    "protection": [*CORE, *GROUPS["build"], *GROUPS["protection"]],
    "clients": GROUPS["clients"],
    "replay": [*CORE, *GROUPS["build"], *GROUPS["replay"]],
}


def name_of(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def requirements(texts: list[str]) -> list[Requirement]:
    """Return the required packages, with the extras of this project replaced by their own requirements."""
    expanded = []
    for requirement in map(Requirement, texts):
        if requirement.name == "tool-pdp":
            expanded += requirements([each for extra in requirement.extras for each in EXTRAS[extra]])
        else:
            expanded.append(requirement)
    return expanded


def locked(name: str) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for package, version in re.findall(
        r"^([\w.-]+)==([^ ;\\]+)", (ROOT / f"locks/{name}.txt").read_text(), re.MULTILINE
    ):
        versions.setdefault(name_of(package), []).append(version)
    return versions


@pytest.mark.parametrize("name", INSTALLED)
def test_lock_files_satisfy_the_version_ranges_in_pyproject(name: str) -> None:
    versions = locked(name)

    for requirement in requirements(INSTALLED[name]):
        locked_versions = versions.get(name_of(requirement.name), [])
        assert locked_versions, f"locks/{name}.txt lacks {requirement.name}: {RENEW}"
        assert all(version in requirement.specifier for version in locked_versions), (
            f"{requirement} but {locked_versions}: {RENEW}"
        )


def test_user_and_developer_lock_files_agree_on_versions() -> None:
    tested = locked("dev")

    assert {name: versions for name, versions in locked("user").items() if versions != tested.get(name)} == {}


@pytest.mark.parametrize("name", INSTALLED)
def test_every_locked_package_has_a_hash(name: str) -> None:
    entries = re.split(r"\n(?! )", (ROOT / f"locks/{name}.txt").read_text().strip())

    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
