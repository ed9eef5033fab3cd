"""The lock files name a version of every package that pyproject.toml asks for, and one that it admits."""

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


def requirements(stated: list[str]) -> list[Requirement]:
    """Requirements of other packages, with our own extras spelt out."""
    found = []
    for requirement in map(Requirement, stated):
        if requirement.name == "tool-pdp":
            found += requirements([each for extra in requirement.extras for each in EXTRAS[extra]])
        else:
            found.append(requirement)
    return found


def locked(name: str) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for package, version in re.findall(
        r"^([\w.-]+)==([^ ;\\]+)", (ROOT / f"locks/{name}.txt").read_text(), re.MULTILINE
    ):
        versions.setdefault(name_of(package), []).append(version)
    return versions


@pytest.mark.parametrize("name", INSTALLED)
def test_each_lock_satisfies_the_ranges_of_the_package(name: str) -> None:
    versions = locked(name)

    for requirement in requirements(INSTALLED[name]):
        found = versions.get(name_of(requirement.name), [])
        assert found, f"locks/{name}.txt lacks {requirement.name}: {RENEW}"
        assert all(version in requirement.specifier for version in found), f"{requirement} but {found}: {RENEW}"


def test_users_and_developers_have_the_same_versions() -> None:
    tested = locked("dev")

    assert {name: versions for name, versions in locked("user").items() if versions != tested.get(name)} == {}


@pytest.mark.parametrize("name", INSTALLED)
def test_each_locked_package_has_a_hash(name: str) -> None:
    entries = re.split(r"\n(?! )", (ROOT / f"locks/{name}.txt").read_text().strip())

    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
