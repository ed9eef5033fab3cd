import ast
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp.engine.bundle.file import Bundle, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import FileFaultsError, UsageError
from pdp.json import canonical, digest
from pdp.opa.build import compile_bundle, write_bundle
from pdp.opa.modules import baseline_policies_path
from tests.support import ROOT

pytestmark = pytest.mark.opa

TINY = ROOT / "tests/support/rego/tiny"
SETTINGS = {"settings": {"known": ["look", "pay"]}}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A small baseline that a test may change, with the capabilities of the real baseline."""
    return copied(tmp_path / "tiny")


def copied(folder: Path) -> Path:
    shutil.copytree(TINY, folder)
    shutil.copy(ROOT / "policies/capabilities.json", folder / "capabilities.json")
    return folder


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    return folder


def build(opa: Path, folder: Path, *more: Path, **options: Any) -> Bundle:
    out = folder.parent / "bundle.tar.gz"
    write_bundle(out, compile_bundle(policies=[folder, *more], opa=opa, **({"release": 1} | options)))
    return read_bundle(out)


def answered(bundle: Bundle, action: str, **data: Any) -> Any:
    with EmbeddedEngine(bundle, data=data or SETTINGS) as engine:
        return json.loads(engine.evaluate(canonical({"action": {"name": action}})))


def codes(bundle: Bundle, action: str) -> tuple[str, list[str]]:
    answer = answered(bundle, action)
    return answer["verdict"], sorted(reason["code"] for reason in answer["reasons"])


NIGHT = Path(__file__).with_name("night.rego").read_text()


# Content of a bundle


def test_bundle_contains_policies_wasm_and_data(opa: Path, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text('{"settings": {"known": ["look"]}, "directory": {"corpora": {"c": 1}}}')

    manifests: dict[str, Any] = {digest(canonical({"tools": {}})): {"tools": {}}}
    bundle = build(opa, tiny, release=5, data=[tmp_path / "more.json"], manifests=manifests)

    assert bundle.data == {
        "config": {"required_concerns": ["known"], "bundle": {"revision": bundle.revision, "release": 5}},
        "directory": {"corpora": {"c": 1}},
        "manifests": manifests,
        "settings": {"known": ["look"]},
    }
    assert bundle.modules == {
        path: (TINY / path).read_text() for path in ("authz/concerns/known/known.rego", "authz/decision.rego")
    }
    assert answered(bundle, "look", settings={}) == {
        "verdict": "ALLOW",
        "reasons": [{"code": "known.action", "message": "A known action.", "details": {}}],
        "obligations": [],
        "bundle": {"revision": bundle.revision, "release": 5},
    }


def test_custom_concern_in_a_bundle_decides_and_is_required(opa: Path, tiny: Path, tmp_path: Path) -> None:
    own = written(tmp_path / "own", {"night/night.rego": NIGHT, "night/night_test.rego": "package x_test\n"})

    bundle = build(opa, tiny, own)

    assert set(bundle.modules) == {
        "authz/concerns/known/known.rego",
        "authz/decision.rego",
        "custom/night/night.rego",
    }
    assert bundle.data["config"]["required_concerns"] == ["known", "night"]
    assert codes(bundle, "pay") == ("DENY", ["night.closed"])
    assert codes(bundle, "look") == ("ALLOW", ["known.action"])


def test_missing_baseline_concern_is_rejected(opa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("policies", "bundles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.rmtree(tmp_path / "policies/authz/concerns/scopes")
    monkeypatch.setattr("pdp.installed.__file__", str(tmp_path / "pdp/installed.py"))

    with pytest.raises(UsageError, match=r"^the policies lack concerns of the released baseline: scopes \("):
        compile_bundle(policies=[tmp_path / "policies"], release=1, opa=opa)


def test_bundle_contains_all_modules_of_a_concern(opa: Path, tiny: Path, tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"custom/night.rego": NIGHT})
    other = written(tmp_path / "other", {"more.rego": "package custom.concerns.night\n\n_more := 1\n"})

    bundle = build(opa, tiny, one, other)

    assert sorted(bundle.modules)[2:] == ["custom/more.rego", "custom/night.rego"]


# Reproducible bytes


def test_same_policy_sources_give_the_same_bundle_bytes(opa: Path, tmp_path: Path) -> None:
    """Another folder, another order of writing the files, or other line ends of the sources do not change a byte."""
    first, second = copied(tmp_path / "a"), copied(tmp_path / "deep/er/b")
    own = written(tmp_path / "own", {"a.rego": NIGHT, "b.rego": NIGHT.replace("night", "noon")})
    other = written(
        tmp_path / "deep/own",
        {"b.rego": NIGHT.replace("night", "noon").replace("\n", "\r\n"), "a.rego": NIGHT.replace("\n", "\r\n")},
    )
    for file in second.rglob("*.rego"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
        os.utime(file, (0, 0))
        file.chmod(0o600)
    (tmp_path / "data.json").write_text('{"settings": {"a": 1, "b": 2.0}}')
    (tmp_path / "same.json").write_text('{ "settings": {\r\n "b": 2, "a": 1 } }')

    build(opa, first, own, data=[tmp_path / "data.json"])
    build(opa, second, other, data=[tmp_path / "same.json"])

    one, two = tmp_path / "bundle.tar.gz", tmp_path / "deep/er/bundle.tar.gz"
    assert one.read_bytes() == two.read_bytes()


def test_environment_variables_of_opa_have_no_effect(opa: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build(opa, tiny)
    monkeypatch.setenv("OPA_BUILD_OPTIMIZE", "2")
    monkeypatch.setenv("OPA_CHECK_V0_COMPATIBLE", "true")

    assert build(opa, tiny) == before


def test_bundle_file_is_replaced_atomically(opa: Path, tiny: Path, tmp_path: Path) -> None:
    before = build(opa, tiny)
    written(tiny, {"authz/decision.rego": "package authz\n\ndecision := http.send({})\n"})

    with pytest.raises(FileFaultsError):
        build(opa, tiny)

    assert read_bundle(tmp_path / "bundle.tar.gz") == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bundle.tar.gz", "tiny"]


# Rejected sources


def faults(opa: Path, folder: Path, *more: Path) -> list[tuple[str, str, str | None]]:
    """Return location, message and hint of each fault. Locations are relative to the parent of `folder`."""
    with pytest.raises(FileFaultsError) as caught:
        build(opa, folder, *more)
    return [
        (str(fault.place).removeprefix(f"{folder.parent}/"), fault.message, fault.hint) for fault in caught.value.faults
    ]


IN_DETAILS = 'put values into the reason\'s details: `reason.new(rego.metadata.rule(), {"amount": amount})`'
NOT_ADMITTED = "policies must decide the same on both engines: pass time and facts in the request"


LATE = """\
package custom.concerns.late

deny contains time.now_ns()

step_up contains sprintf(`%d`, [input.amount])

allow contains fetched(input.amount)
"""
UNUSED = "package custom.concerns.a\n\nimport data.authz.lib.reason\n\ndeny contains 1 if {\n\tx := 1\n}\n"
IDLE = "# Mine.\npackage custom.concerns.{}\n\n_y := 1\n"
TESTED = "package {}\n\ndeny contains 1\n"
LOST = "`deny` is defined in a unit test, which bundles leave out"
LOST_HINT = "bundles leave out files whose names end in `_test.rego`: rename the file, or the rule"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"late.rego": LATE},
            [
                ("late.rego:3:15", "the builtin time.now_ns is not allowed in policies", NOT_ADMITTED),
                ("late.rego:5:18", "the builtin sprintf is not allowed in policies", IN_DETAILS),
                ("late.rego:7:16", "unknown function fetched", "check its spelling, and that its package is imported"),
            ],
        ),
        (
            {"a.rego": UNUSED},
            [
                ("a.rego:3:1", "import data.authz.lib.reason unused", None),
                ("a.rego:6:2", "assigned var x unused", None),
            ],
        ),
        (
            # The concern `busy` has two modules. Only one of these modules defines a finding, which is enough.
            {"b.rego": IDLE.format("idle"), "a.rego": IDLE.format("idle"), "more.rego": IDLE.format("busy"),
             "busy.rego": "package custom.concerns.busy\n\ndeny contains 1 if false\n"},
            [("a.rego:2:1", "the concern custom.concerns.idle defines no finding",
              "define one of deny, step_up, allow, obligations")],
        ),
        (
            {"night.rego": NIGHT, "x0_test.rego": TESTED.format("authz.concerns.known"),
             "x1_test.rego": TESTED.format("custom.concerns.a.b"), "x2_test.rego": TESTED.format("anything")},
            [(f"x{at}_test.rego:3:1", LOST, LOST_HINT) for at in range(3)],
        ),
    ],
    ids=["builtins", "strict check", "a concern without findings", "denials in unit tests"],
)  # fmt: skip
def test_faults_name_the_file_and_the_location(
    opa: Path, tiny: Path, tmp_path: Path, files: dict[str, str], expected: list[tuple[str, str, str | None]]
) -> None:
    own = written(tmp_path / "own", files)

    assert sorted(faults(opa, tiny, own)) == [(f"own/{place}", *rest) for place, *rest in expected]


def test_faults_of_several_files_are_reported_together(opa: Path, tiny: Path, tmp_path: Path) -> None:
    own = written(
        tmp_path / "own", {"a.rego": "package custom.concerns.a\n\ndeny contains\n", "b.rego": "", "c.rego": "x"}
    )

    reported = faults(opa, tiny, own)

    assert {place for place, _, _ in reported} == {"own/a.rego:3:14", "own/b.rego:1:1", "own/c.rego:1:1"}
    hint = "the file is empty: begin with `package custom.concerns.NAME`, or remove it"
    assert ("own/b.rego:1:1", "empty module", hint) in reported


def test_use_of_a_request_field_that_the_schema_lacks_is_rejected(opa: Path, tiny: Path) -> None:
    shutil.copytree(ROOT / "policies/schemas", tiny / "schemas")
    text = (
        "# METADATA\n# schemas:\n#   - input: schema.request\npackage authz.concerns.known\n\n"
        "deny contains 1 if input.subjct.id == 1\n"
    )
    written(tiny, {"authz/concerns/known/known.rego": text})

    ((place, message, _),) = faults(opa, tiny)

    assert place == "tiny/authz/concerns/known/known.rego:6:20"
    assert message.startswith("`input.subjct.id` does not exist")


PACKAGE = "a custom module must be `package custom.concerns.NAME`"
NAME_IT = "give each concern its own package, with a name that the baseline does not use"


def test_packages_outside_custom_concerns_are_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    taken = ("action_staging", "authz", "custom", "decision", "loop", "pep", "planning", "reason")
    expected = {
        **{
            package: f"{PACKAGE}, not `package {package}`"
            for package in (
                "authz.concerns.limits", "authz", "custom.concerns", "custom.concerns.a.nested", "custom.lib.a",
                "settings",
            )
        },
        'custom.concerns["A b"]': f"{PACKAGE} with a name of lower-case letters, digits and `_`, not 'A b'",
        "custom.concerns.known": "the baseline has a concern named known: reason codes would be ambiguous",
        **{
            f"custom.concerns.{name}": (
                f"the name {name} is reserved: reason codes would be ambiguous"
            )
            for name in taken
        },
    }  # fmt: skip
    texts = {
        f"x{number:02}.rego": f"# Mine.\npackage {package}\n\ndeny contains 1 if false\n"
        for number, package in enumerate(expected)
    }
    own = written(tmp_path / "own", texts)

    assert sorted(faults(opa, tiny, own)) == [
        (f"own/x{number:02}.rego:2:1", message, NAME_IT) for number, message in enumerate(expected.values())
    ]


def _codes_in(file: Path) -> Iterator[str]:
    """Return the reason codes of a module: `code` of each error class and, in the package `patterns`, every text."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and file.parent.name == "patterns":
            yield node.value
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "code" for target in targets):
                yield str(node.value.value)


def test_reserved_concern_names_are_rejected(opa: Path, tmp_path: Path) -> None:
    """No custom concern may have a name with which the codes of this package begin, such as `engine`."""
    codes = {code for file in sorted((ROOT / "pdp").rglob("*.py")) for code in _codes_in(file)}
    names = {code.partition(".")[0] for code in codes if re.fullmatch(r"[a-z_]+\.[a-z_]+", code)}
    assert {"audit", "engine", "pdp", "search", "store"} <= names
    files = {f"{name}.rego": f"package custom.concerns.{name}\n\ndeny contains 1 if false\n" for name in names}

    refused = faults(opa, copied_baseline(tmp_path), written(tmp_path / "own", files))

    assert {place for place, _, hint in refused if hint == NAME_IT} == {f"own/{name}.rego:1:1" for name in names}


def copied_baseline(folder: Path) -> Path:
    shutil.copytree(ROOT / "policies/authz", folder / "policies/authz")
    shutil.copy(ROOT / "policies/capabilities.json", folder / "policies")
    return folder / "policies"


# Files that a bundle would leave out


LOAD = """\
package custom.concerns.load_test

deny contains 1 if false

_some := 1

default allow := false
"""


def test_concern_in_unit_test_file_is_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    """The unit tests of the concern `night` are accepted. A syntax error in a unit test file is also reported."""
    files = {
        "night/night.rego": NIGHT,
        "night/night_test.rego": "package custom.concerns.night_test\n\ntest_x if data.custom.concerns.night.deny\n",
        "load_test/load_test.rego": LOAD,
    }
    own = written(tmp_path / "own", files)

    assert faults(opa, tiny, own) == [
        ("own/load_test/load_test.rego:3:1", "`deny` is defined in a unit test, which bundles leave out", LOST_HINT),
        ("own/load_test/load_test.rego:7:1", "`allow` is defined in a unit test, which bundles leave out", LOST_HINT),
    ]
    written(own, {"load_test/load_test.rego": "package custom.concerns.load_test\n\ndeny contains\n"})
    assert {place for place, _, _ in faults(opa, tiny, own)} == {"own/load_test/load_test.rego:3:14"}
    (own / "load_test/load_test.rego").unlink()
    written(own, {"load_test/load.rego": NIGHT.replace("night", "load_test")})
    assert build(opa, tiny, own).data["config"]["required_concerns"] == ["known", "load_test", "night"]


def test_folder_with_only_unit_tests_is_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    own = written(tmp_path / "own", {"load_test.rego": LOAD})

    assert usage(opa, tiny, own) == "own: only unit tests (`…_test.rego`) in it (give folders with Rego files)"


def test_link_to_folder_is_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    """OPA reads a link to a file, but does not follow a link to a folder, so a link to a folder is an error."""
    there = written(tmp_path / "there", {"noon/noon.rego": NIGHT.replace("night", "noon")})
    own = written(tmp_path / "own", {"custom/concerns/night/night.rego": NIGHT})
    link = own / "custom/concerns/noon.rego"
    link.symlink_to(there / "noon/noon.rego")
    assert build(opa, tiny, own).data["config"]["required_concerns"] == ["known", "night", "noon"]

    (there / "noon/noon.rego").unlink()
    dangling = usage(opa, tiny, own)
    link.unlink()
    (own / "custom/concerns/linked").symlink_to(there, target_is_directory=True)

    assert dangling == "own/custom/concerns/noon.rego: not a file (if it is a link, its target is missing)"
    assert usage(opa, tiny, own) == (
        "own/custom/concerns/linked: a link to a folder, which is not followed "
        "(put the folder itself here, or give the link's target as another folder)"
    )


@pytest.mark.parametrize("name", ["NOON.REGO", "noon.Rego", "noon_test.REGO"])
def test_rego_file_with_unknown_ending_is_rejected(opa: Path, tiny: Path, tmp_path: Path, name: str) -> None:
    own = written(tmp_path / "own", {"night.rego": NIGHT, name: NIGHT.replace("night", "noon")})

    assert usage(opa, tiny, own) == f"own/{name}: OPA does not load a Rego file of this name (end the name in `.rego`)"


def test_unreadable_folder_is_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    own = written(tmp_path / "own", {"night.rego": NIGHT, "shut/noon.rego": NIGHT.replace("night", "noon")})
    (own / "shut").chmod(0)
    try:
        if os.access(own / "shut", os.R_OK):
            pytest.skip("this user may read everything")
        assert usage(opa, tiny, own) == "own/shut: cannot be read: Permission denied (check its permissions)"
    finally:
        (own / "shut").chmod(0o700)


def test_custom_concern_that_reads_decisions_or_findings_is_rejected(opa: Path, tmp_path: Path) -> None:
    texts = [
        "deny contains 1 if data.authz.decision.verdict",
        "deny contains 1 if data.authz.findings.allow",
        "deny contains 1 if not data.authz[`decision`].verdict",
        "deny contains 1 if data[input.x].decision",
        "deny contains 1 if count(data) > 1",
        "deny contains 1 if count(data.authz) > data.settings.x",
        "deny contains 1 if {\n\tsome name\n\tdata.authz[name]\n}",
        "import data.authz as a\n\ndeny contains 1 if a[_].verdict",
        "deny contains 1 if _x\n\n_x := 1 if input.x\n\nelse := data.authz.decision",
    ]
    files = {f"x{at}.rego": f"package custom.concerns.x{at}\n\n{text}\n" for at, text in enumerate(texts)}
    own = written(tmp_path / "own", files)

    refused = faults(opa, copied_baseline(tmp_path), own)

    assert {place.partition(":")[0].rpartition("/")[2] for place, _, _ in refused} == files.keys()
    assert all(" recursive: " in message for _, message, _ in refused)
    assert all("a concern cannot use the decision" in (hint or "") for _, _, hint in refused)


def test_concern_findings_that_are_not_partial_sets_are_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    parts = ("deny", "step_up", "allow", "obligations")
    rules = [
        "{} := [`bad`]", "{} := true", "default {} := false", "{} if input.x", "{}(x) := x",
        "{}[key] := 1 if key := `a`", "{}.more contains 1", "{}.more := 1",
    ]  # fmt: skip
    texts = {
        f"{part}.rego": "\n\n".join([f"package custom.concerns.x_{part}", *rules, ""]).replace("{}", part)
        for part in parts
    }

    result = faults(opa, tiny, written(tmp_path / "own", texts))

    assert sorted((place.rsplit(":", 1)[0], message, hint) for place, message, hint in result) == sorted(
        (
            f"own/{part}.rego:{3 + 2 * at}",
            f"`{part}` of a concern must be a partial set: `{part} contains … if {{ … }}`",
            "the decision reads only sets of reasons",
        )
        for part in parts
        for at in range(len(rules))
    )


def test_custom_package_in_the_baseline_folder_is_rejected(opa: Path, tiny: Path) -> None:
    written(tiny, {"authz/x.rego": "package custom.concerns.x\n\ndeny contains 1 if false\n"})

    assert faults(opa, tiny) == [
        (
            "tiny/authz/x.rego:1:1",
            "`package custom.concerns.x` is not allowed in the baseline, only `package authz` and below",
            "put your own modules into a folder of your own",
        )
    ]


def usage(opa: Path, *folders: Path, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        build(opa, folders[0], *folders[1:], **options)
    assert not isinstance(caught.value, FileFaultsError)
    return str(caught.value).replace(f"{folders[0].parent}/", "")


def test_unusable_folders_are_named_in_error(opa: Path, tiny: Path, tmp_path: Path) -> None:
    empty, spaced = tmp_path / "empty", written(tmp_path / "spaced", {"a b.rego": NIGHT})
    empty.mkdir()
    twice = [written(tmp_path / name, {"x.rego": NIGHT}) for name in ("one", "two")]
    large = written(tmp_path / "large", {"x.rego": "#" * 2**21})

    name_folders = "give folders with Rego files"
    name_once = "give the baseline's folder once, and your own folders"
    assert usage(opa, tiny, tmp_path / "none") == f"none: not a folder ({name_folders})"
    assert usage(opa, tiny, empty) == f"empty: no Rego file in it ({name_folders})"
    assert usage(opa, empty) == f"none of the folders has authz/decision.rego ({name_once})"
    assert usage(opa, tiny, copied(tmp_path / "b")) == f"more than one folder has authz/decision.rego ({name_once})"
    assert usage(opa, tiny, spaced) == (
        "spaced/a b.rego: the name is not allowed in a bundle "
        "(use letters, digits, `_`, `-` and `.`, and do not start with `.`)"
    )
    assert usage(opa, tiny, *twice) == (
        "two/x.rego: has the same path in the bundle as one/x.rego "
        "(give each folder once, and rename files with the same path in two folders)"
    )
    assert usage(opa, tiny, twice[0], twice[0]).startswith("one/x.rego: has the same path in the bundle as one/x.rego")
    assert usage(opa, tiny, large) == "large/x.rego: larger than 1048576 bytes (check that this is a Rego file)"


def test_invalid_arguments_are_named_in_error(opa: Path, tiny: Path, tmp_path: Path) -> None:
    assert usage(opa, tiny, release=0) == "release 0 is out of range (give a number from 1 upwards)"
    assert usage(tmp_path / "nowhere/opa", tiny) == (
        "nowhere/opa: OPA cannot be run: No such file or directory (install it with `pdp opa install`)"
    )
    (tiny / "capabilities.json").unlink()
    assert usage(opa, tiny).endswith("no such file or capabilities version found: tiny/capabilities.json")
    with pytest.raises(UsageError) as caught:
        write_bundle(tmp_path / "no/b.tar.gz", b"")
    assert str(caught.value) == (
        f"{tmp_path}/no/b.tar.gz: cannot be written: No such file or directory (choose a folder you can write to)"
    )


def test_data_file_with_a_root_that_is_not_allowed_is_rejected(opa: Path, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"authz": {"concerns": {"zz": {"allow": ["x"]}}}}')

    with pytest.raises(FileFaultsError) as caught:
        build(opa, tiny, data=[tmp_path / "data.json"])
    assert [(fault.place.line, fault.message) for fault in caught.value.faults] == [
        (1, "the root `authz` is not allowed")
    ]


def test_build_fails_if_a_builtin_is_missing_in_webassembly(opa: Path, tiny: Path) -> None:
    """These capabilities allow `sprintf`, which OPA's WebAssembly does not have."""
    current = subprocess.run([opa, "capabilities", "--current"], capture_output=True, check=True).stdout
    written(tiny, {"capabilities.json": current.decode()})
    policy = "package authz\n\ndecision := sprintf(`%d`, [input.x])\n\nfindings := 1\n\nplan := 1\n"
    written(tiny, {"authz/decision.rego": policy})

    with pytest.raises(Exception, match="builtins that its WebAssembly module does not contain: sprintf"):
        build(opa, tiny)


# Builtins


def _declared(node: Any, dropped: frozenset[str] = frozenset({"description", "categories"})) -> Any:
    """Return the declaration of a builtin without descriptions and argument names, which the compiler ignores."""
    if isinstance(node, dict):
        return {
            key: _declared(value, dropped | {"name"} if key == "decl" else dropped)
            for key, value in node.items()
            if key not in dropped
        }
    return [_declared(item, dropped) for item in node] if isinstance(node, list) else node


def test_capabilities_file_has_the_same_declarations_as_opa(opa: Path) -> None:
    # A wrong declaration changes the compiled code. For example, `walk` without `relation` returns nothing in
    # WebAssembly.
    current = json.loads(subprocess.run([opa, "capabilities", "--current"], capture_output=True, check=True).stdout)
    of_opa = {builtin["name"]: _declared(builtin) for builtin in current["builtins"]}
    ours = json.loads((baseline_policies_path() / "capabilities.json").read_text())["builtins"]

    assert [builtin["name"] for builtin in ours if _declared(builtin) != of_opa[builtin["name"]]] == []
