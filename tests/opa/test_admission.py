"""The conventions for policies: each check reports faults with their locations, in `pdp check` and in builds."""

import io
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from pdp.cli.commands.check import check, expected_codes
from pdp.errors import FileFaultsError, UsageError
from pdp.opa.build import compile_bundle
from pdp.opa.modules import baseline_policies_path, collect
from tests.support.payments import EXAMPLE

pytestmark = [pytest.mark.opa, pytest.mark.usefixtures("opa")]

PACKAGE = """\
# METADATA
# title: Desk
# description: Only while the desk is staffed.
package custom.concerns.desk

import data.authz.lib.reason

"""

DENY = """\
# METADATA
# title: Desk closed
# description: The desk is closed.
# custom:
#   code: desk.closed
deny contains reason.new(rego.metadata.rule(), {}) if {
	BODY
}
"""

TEST = """\
package custom.concerns.desk_test

import data.custom.concerns.desk

test_open if desk.deny == set() with input as {"context": {"desk": "open"}}
"""

SCENARIOS = f"""\
manifest: {EXAMPLE}/manifest.json
session: {{claims: {{sub: officer-123}}}}
scenarios:
  - name: the desk is closed
    propose: {{tool: initiate_wire}}
    expect: {{verdict: DENY, codes: [desk.closed]}}
"""

CLEAN = PACKAGE + DENY.replace("BODY", 'input.context.desk == "closed"')


def desk(folder: Path, text: str, *, test: str | None = TEST) -> Path:
    """Write a policy folder with the concern `desk`, and return the path of the folder."""
    own = folder / "own/custom/concerns/desk"
    own.mkdir(parents=True)
    (own / "desk.rego").write_text(text, encoding="utf-8")
    if test is not None:
        (own / "desk_test.rego").write_text(test, encoding="utf-8")
    return folder / "own"


def scenarios(folder: Path, text: str = SCENARIOS) -> Path:
    file = folder / "scenarios.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def complaint(folder: Path, policies: Sequence[Path] = (), scenario_files: Sequence[Path] = ()) -> str:
    """Return the faults that `check` reports, with files named relative to the concern's folder."""
    with pytest.raises(FileFaultsError) as caught:
        check(policies=[*policies], scenarios=[*scenario_files])
    return str(caught.value).replace(f"{folder}/own/custom/concerns/desk/", "")


def said(policies: Sequence[Path] = (), scenario_files: Sequence[Path] = ()) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        check(policies=[*policies], scenarios=[*scenario_files])
    return out.getvalue()


# Policies that follow the conventions


def test_baseline_policies_follow_the_policy_conventions() -> None:
    files = len(collect(baseline_policies_path(), [baseline_policies_path()]))

    assert said() == f"{files} files: no fault; scenarios were not checked: give them with --scenarios\n"


def test_example_policies_follow_conventions() -> None:
    assert said([EXAMPLE / "policies"], [EXAMPLE / "scenarios.yaml"]).endswith(": no fault\n")


def test_valid_concern_with_tests_and_scenarios_follows_conventions(tmp_path: Path) -> None:
    assert said([desk(tmp_path, CLEAN)], [scenarios(tmp_path)]) == "1 file: no fault\n"


# One policy for each check, with a fault that the check reports


CONVENTIONS = yaml.safe_load(Path(__file__).with_name("conventions.yaml").read_text())


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_policy_check_reports_the_fault_that_the_check_is_for(opa: Path, tmp_path: Path, name: str) -> None:
    concern, expected = CONVENTIONS[name].values()
    policies = desk(tmp_path, concern)
    by_command = complaint(tmp_path, [policies], [scenarios(tmp_path)])
    with pytest.raises(FileFaultsError) as refused:
        compile_bundle(policies=[baseline_policies_path(), policies], release=1, opa=opa)

    assert by_command == expected
    assert str(refused.value).replace(f"{policies}/custom/concerns/desk/", "") == by_command


def test_each_policy_check_has_its_own_folder_package_and_tests() -> None:
    for folder in (baseline_policies_path() / "checks/rules").iterdir():
        assert folder.name in {*CONVENTIONS, "tested", "proven"}, "show it in conventions.yaml"
        assert {file.name for file in folder.iterdir()} == {f"{folder.name}.rego", f"{folder.name}_test.rego"}
        assert f"\npackage checks.rules.{folder.name}\n" in (folder / f"{folder.name}.rego").read_text()


UNTESTED = """\
desk.rego:4:1: the concern custom.concerns.desk has no unit tests
    package custom.concerns.desk
    ^
    hint: write `package custom.concerns.desk_test` beside it, with `import data.custom.concerns.desk` and rules """
UNTESTED += "named `test_…`"

UNPROVEN = """\
desk.rego:4:1: no scenario expects a code of the concern custom.concerns.desk
    package custom.concerns.desk
    ^
    hint: write one with `expect: {verdict: …, codes: [desk.…]}`"""


def test_policy_check_requires_unit_tests_and_scenarios_but_bundle_build_does_not(opa: Path, tmp_path: Path) -> None:
    policies = desk(tmp_path, CLEAN, test=None)
    other = scenarios(tmp_path, SCENARIOS.replace("desk.closed", "desks.closed"))

    assert complaint(tmp_path, [policies]) == UNTESTED
    assert complaint(tmp_path, [policies], [other]) == f"{UNPROVEN}\n{UNTESTED}"
    assert compile_bundle(policies=[baseline_policies_path(), policies], release=1, opa=opa)


def test_policy_check_reports_faults_of_several_checks_together(tmp_path: Path) -> None:
    """The policies have faults of packages, faults of conventions, and faults of OPA's strict check."""
    policies = desk(tmp_path, CLEAN + "\nimport data.authz.lib.number\n", test=None)
    nested = policies / "custom/concerns/desk/nested.rego"
    nested.write_text("package custom.concerns.desk.nested\n\n_x := 1\n", encoding="utf-8")
    (policies / "late.rego").write_text(
        PACKAGE.replace("desk", "late") + "deny contains http.send({})\n", encoding="utf-8"
    )

    with pytest.raises(FileFaultsError) as caught:
        check(policies=[policies], scenarios=[])

    assert [
        (fault.place.file.removeprefix(f"{policies}/"), fault.place.line, fault.message)
        for fault in caught.value.faults
    ] == [
        ("custom/concerns/desk/desk.rego", 4, "the concern custom.concerns.desk has no unit tests"),
        ("custom/concerns/desk/desk.rego", 17, "import data.authz.lib.number unused"),
        (
            "custom/concerns/desk/nested.rego",
            1,
            "a custom module must be `package custom.concerns.NAME`, not `package custom.concerns.desk.nested`",
        ),
        ("late.rego", 4, "the concern custom.concerns.late has no unit tests"),
        ("late.rego", 6, "import data.authz.lib.reason unused"),
        ("late.rego", 8, "`deny` has no title and no description and no custom.code in its METADATA"),
        ("late.rego", 8, "the builtin http.send is not allowed in policies"),
    ]


def test_check_requires_scenarios_only_for_the_given_folders(tmp_path: Path) -> None:
    """Scenarios must cover the concern in the given folder or, if no folder is given, the baseline's concerns."""
    policies = desk(tmp_path, CLEAN)

    with pytest.raises(FileFaultsError) as caught:
        check(policies=[], scenarios=[scenarios(tmp_path)])

    assert said([policies], [scenarios(tmp_path)]) == "1 file: no fault\n"
    assert {Path(fault.place.file).stem for fault in caught.value.faults} == {
        folder.name for folder in (baseline_policies_path() / "authz/concerns").iterdir()
    }


def test_build_fails_if_the_installation_has_no_policy_checks(
    opa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = tmp_path / "policies"
    shutil.copytree(baseline_policies_path(), policies, ignore=lambda _folder, _names: {"checks"})
    monkeypatch.setattr("pdp.installed.__file__", str(tmp_path / "pdp/installed.py"))
    concern = tmp_path / "custom/desk.rego"
    concern.parent.mkdir()
    concern.write_text(CLEAN)
    with pytest.raises(UsageError, match=rf"^{policies}/checks: no policy checks found "):
        compile_bundle(policies=[policies, concern.parent], release=1, opa=opa)


def test_unusable_folders_are_named_in_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    with pytest.raises(UsageError, match=f"{empty}: no Rego file in it"):
        check(policies=[empty], scenarios=[])
    with pytest.raises(UsageError, match=f"{tmp_path}/none: not a folder"):
        check(policies=[tmp_path / "none"], scenarios=[])
    with pytest.raises(UsageError, match=f"{empty}: no scenario file in this folder"):
        check(policies=[], scenarios=[empty])


# Reason codes that scenarios expect


def test_codes_that_scenarios_expect_are_read_from_their_files(tmp_path: Path) -> None:
    call = "propose: {tool: initiate_wire}"
    file = scenarios(
        tmp_path,
        f"""\
manifest: {EXAMPLE}/manifest.json
session: {{claims: {{sub: officer-123}}}}
scenarios:
  - {{name: several, {call}, expect: {{verdict: DENY, codes: [a.b, a.c]}}}}
  - {{name: none, {call}, expect: {{verdict: ALLOW}}}}
  - name: in steps
    steps: [{{{call}, expect: {{verdict: ALLOW}}}}, {{{call}, expect: {{verdict: DENY, codes: [d.e]}}}}]
  - {{name: in a plan, plan: [{{tool: initiate_wire}}], expect: [{{verdict: DENY, codes: [f.g]}}]}}
""",
    )

    assert expected_codes([file]) == {"a.b", "a.c", "d.e", "f.g"}
