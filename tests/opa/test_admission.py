"""The conventions of policies: what the checks object to, and where, at build and by command."""

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
    """A policy folder with the concern `desk`."""
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
    """What the command says of the folders, paths being relative to `folder`."""
    with pytest.raises(FileFaultsError) as caught:
        check(policies=[*policies], scenarios=[*scenario_files])
    return str(caught.value).replace(f"{folder}/own/custom/concerns/desk/", "")


def said(policies: Sequence[Path] = (), scenario_files: Sequence[Path] = ()) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        check(policies=[*policies], scenarios=[*scenario_files])
    return out.getvalue()


# What is in order


def test_the_baseline_keeps_its_own_conventions() -> None:
    files = len(collect(baseline_policies_path(), [baseline_policies_path()]))

    assert said() == f"{files} files: no fault; not asked for scenarios: name them with --scenarios\n"


def test_the_example_keeps_them_with_its_scenarios() -> None:
    assert said([EXAMPLE / "policies"], [EXAMPLE / "scenarios.yaml"]).endswith(": no fault\n")


def test_a_concern_as_the_guide_shows_it(tmp_path: Path) -> None:
    assert said([desk(tmp_path, CLEAN)], [scenarios(tmp_path)]) == "1 file: no fault\n"


# What is not: one fault of each check, whole


CONVENTIONS = yaml.safe_load(Path(__file__).with_name("conventions.yaml").read_text())


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_check_by_command_and_at_build(opa: Path, tmp_path: Path, name: str) -> None:
    concern, expected = CONVENTIONS[name].values()
    policies = desk(tmp_path, concern)
    by_command = complaint(tmp_path, [policies], [scenarios(tmp_path)])
    with pytest.raises(FileFaultsError) as refused:
        compile_bundle(policies=[baseline_policies_path(), policies], release=1, opa=opa)

    assert by_command == expected
    assert str(refused.value).replace(f"{policies}/custom/concerns/desk/", "") == by_command


def test_a_check_is_one_folder_with_one_package_and_its_tests() -> None:
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


def test_tests_and_scenarios_are_asked_for_by_command_and_not_at_build(opa: Path, tmp_path: Path) -> None:
    policies = desk(tmp_path, CLEAN, test=None)
    other = scenarios(tmp_path, SCENARIOS.replace("desk.closed", "desks.closed"))

    assert complaint(tmp_path, [policies]) == UNTESTED
    assert complaint(tmp_path, [policies], [other]) == f"{UNPROVEN}\n{UNTESTED}"
    assert compile_bundle(policies=[baseline_policies_path(), policies], release=1, opa=opa)


def test_every_kind_of_fault_is_reported_at_once(tmp_path: Path) -> None:
    """Packages, conventions, and what OPA's own strict check finds."""
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
        ("late.rego", 8, "the builtin http.send is not admitted in policies"),
    ]


def test_only_the_folders_that_are_named_are_asked_for_scenarios(tmp_path: Path) -> None:
    """The scenarios of one's own concern need not prove the baseline, and the other way round."""
    policies = desk(tmp_path, CLEAN)

    with pytest.raises(FileFaultsError) as caught:
        check(policies=[], scenarios=[scenarios(tmp_path)])

    assert said([policies], [scenarios(tmp_path)]) == "1 file: no fault\n"
    assert {Path(fault.place.file).stem for fault in caught.value.faults} == {
        folder.name for folder in (baseline_policies_path() / "authz/concerns").iterdir()
    }


def test_an_installation_without_checks_is_named(opa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = tmp_path / "policies"
    shutil.copytree(baseline_policies_path(), policies, ignore=lambda _folder, _names: {"checks"})
    monkeypatch.setattr("pdp.installed.__file__", str(tmp_path / "pdp/installed.py"))
    concern = tmp_path / "custom/desk.rego"
    concern.parent.mkdir()
    concern.write_text(CLEAN)
    with pytest.raises(UsageError, match=rf"^{policies}/checks: no checks of policies "):
        compile_bundle(policies=[policies, concern.parent], release=1, opa=opa)


def test_folders_that_cannot_be_checked_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    with pytest.raises(UsageError, match=f"{empty}: no Rego file in it"):
        check(policies=[empty], scenarios=[])
    with pytest.raises(UsageError, match=f"{tmp_path}/none: not a folder"):
        check(policies=[tmp_path / "none"], scenarios=[])
    with pytest.raises(UsageError, match=f"{empty}: no scenario file in it"):
        check(policies=[], scenarios=[empty])


# Codes that scenarios expect


def test_expected_codes(tmp_path: Path) -> None:
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
