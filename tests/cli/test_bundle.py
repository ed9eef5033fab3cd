"""`pdp bundle build`, and decisions with built bundles and custom policies, some of which are broken or hostile."""

from pathlib import Path

import pytest

from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from tests.support import ROOT
from tests.support.command_line import codes, decided, pdp, session_file, written
from tests.support.payments import EXAMPLE, effective, wire

pytestmark = [pytest.mark.opa, pytest.mark.usefixtures("opa")]

CONCERNS = sorted([*(path.name for path in (ROOT / "policies/authz/concerns").iterdir()), "beneficiary", "sanctions"])


def concern(folder: Path, name: str, text: str) -> Path:
    """Write a policy folder that contains a custom concern with one Rego module."""
    file = folder / "policies/custom/concerns" / name / f"{name}.rego"
    file.parent.mkdir(parents=True)
    written(file, text.encode(errors="surrogateescape"))
    return folder / "policies"


# Building


def test_same_sources_give_the_same_bundle_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--policies", EXAMPLE / "policies", "-m", EXAMPLE / "manifest.json", "-g", EXAMPLE / "governance.yaml"]
    first = pdp("bundle", "build", "-o", tmp_path / "first.tar.gz", *options, "--json")
    monkeypatch.chdir(tmp_path)
    second = pdp("bundle", "build", "--output", "second.tar.gz", *options, "--release", "1")
    bundle = read_bundle(tmp_path / "first.tar.gz")
    manifest = effective()
    assert (first.code, first.json, first.err) == (
        0,
        {
            "file": str(tmp_path / "first.tar.gz"),
            "revision": bundle.revision,
            "release": 1,
            "bytes": (tmp_path / "first.tar.gz").stat().st_size,
            "manifests": {manifest.digest: "2026.07.1"},
            "concerns": CONCERNS,
        },
        "",
    )
    text = (
        f"second.tar.gz: release 1, {bundle.size} bytes\n"
        f"  revision  {bundle.revision}\n"
        f"  concerns  {', '.join(CONCERNS)}\n"
        f"  manifest  2026.07.1  {manifest.digest}\n"
    )
    assert second == (0, text, "")
    assert (tmp_path / "second.tar.gz").read_bytes() == (tmp_path / "first.tar.gz").read_bytes()


def test_decide_uses_the_built_bundle(tmp_path: Path) -> None:
    data = written(tmp_path / "data.json", {"settings": {"a": 1}})
    built = pdp("bundle", "build", "-o", tmp_path / "b.tar.gz", "--data", data, "--release", "7", "--json")
    done = decided(wire(), "--bundle", tmp_path / "b.tar.gz", "--json")
    assert (built.code, done.code, codes(done)) == (0, 3, ["limits.exceeded"])
    assert done.json["bundle_revision"] == built.json["revision"] == read_bundle(tmp_path / "b.tar.gz").revision
    assert (built.json["release"], built.json["manifests"]) == (7, {})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["-m", EXAMPLE / "manifest.json", "-g", "a.yaml", "-g", "b.yaml"],
            (
                "error: 1 manifests and 2 governance files\n"
                "    hint: give a governance file for every manifest, in the same order, or for no manifest\n"
            ),
        ),
        (["-m", "nowhere.json"], "error: nowhere.json: no such file\n    hint: check the path\n"),
        (
            ["-m", "-", "-g", "-"],
            "error: standard input (-) is closed, empty, or was read already\n    hint: pipe a file in, use - once\n",
        ),
        (["--policies", "nowhere"], "error: nowhere: not a folder\n    hint: give folders with Rego files\n"),
        (
            ["--data", "nowhere.json"],
            "error: nowhere.json: no such file\n    hint: check the path\n",
        ),
        (
            ["--release", "99999999999999999999"],
            "error: release 99999999999999999999 is out of range\n    hint: give a number from 1 upwards\n",
        ),
    ],
)
def test_bundle_build_reports_unusable_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[object], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pdp("bundle", "build", "-o", "b.tar.gz", *options, stdin=b"") == (2, "", complaint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("release", ["0", "-1", "one", "1.5", ""])
def test_bundle_build_rejects_an_invalid_release_number(tmp_path: Path, release: str) -> None:
    done = pdp("bundle", "build", "-o", tmp_path / "b.tar.gz", "--release", release)
    assert (done.code, done.out) == (2, "")
    assert "Invalid value for '--release'" in done.err


@pytest.mark.parametrize(("name", "why"), [("", "Is a directory"), ("nowhere/b", "No such file or directory")])
def test_bundle_build_reports_an_unwritable_output_file(tmp_path: Path, name: str, why: str) -> None:
    done = pdp("bundle", "build", "-o", tmp_path / name)
    assert done == (
        2,
        "",
        f"error: {tmp_path / name}: cannot be written: {why}\n    hint: choose a folder you can write to\n",
    )
    assert list(tmp_path.iterdir()) == []


# Custom policies


def test_custom_concern_can_deny_a_call(tmp_path: Path) -> None:
    file = session_file(tmp_path, facts={"beneficiary_id": "bene-acme-441", "sanctions_status": "hit"})
    answers = [
        decided(wire(amount=1), "--policies", EXAMPLE / "policies", "--json", "--engine", engine, s=file)
        for engine in ("embedded", "sidecar")
    ]
    assert [(done.code, codes(done)) for done in answers] == [(4, ["sanctions.not_clear"])] * 2
    assert answers[0].json["bundle_revision"] == answers[1].json["bundle_revision"]


GRANTING = """\
# METADATA
# title: Granting
# description: Would allow everything.
package custom.concerns.granting

# METADATA
# title: All
# description: Anything goes.
# custom:
#   code: granting.all
allow contains {"code": "granting.all", "message": "Anything goes.", "details": {}}
"""


def test_custom_concern_cannot_grant_a_call(tmp_path: Path) -> None:
    policies = concern(tmp_path, "granting", GRANTING)
    file = session_file(tmp_path, claims={"emts": {}})
    done = decided(wire(amount=1), "--policies", policies, "--json", s=file)
    assert (done.code, codes(done)) == (4, ["scopes.missing"])


BLOCKED = """\
# METADATA
# title: Blocked
# description: Lists of those who get nothing.
package custom.concerns.blocked

# METADATA
# title: Beneficiary blocked
# description: Blocked.
# custom:
#   code: blocked.beneficiary
deny contains {"code": "blocked.beneficiary", "message": "Blocked.", "details": {}} if {
	input.resource.id in data.settings.blocked[data.settings.list]
}
"""


def test_custom_concern_reads_the_files_of_the_data_option(tmp_path: Path) -> None:
    policies = concern(tmp_path, "blocked", BLOCKED)
    lists = written(
        tmp_path / "lists.json", {"settings": {"blocked": {"eu": ["bene-acme-441"], "us": []}, "list": "us"}}
    )
    chosen = written(tmp_path / "chosen.json", {"settings": {"list": "eu"}})
    for engine in ("embedded", "sidecar"):
        options = ["--policies", policies, "--engine", engine, "--json", "--data", lists]
        assert decided(wire(amount=1), *options).code == 0
        done = decided(wire(amount=1), *options, "--data", chosen)
        assert (done.code, codes(done)) == (4, ["blocked.beneficiary"]), engine


NOT_PURE = "    hint: policies must decide the same on both engines: pass time and facts in the request\n"
BE_A_SET = "    hint: the decision reads only sets of reasons\n"
PROBE = """\
package custom.concerns.probe

answer := http.send({"method": "GET", "url": "http://localhost"})
allow := true
"""


def test_unsupported_rego_is_rejected_with_location(tmp_path: Path) -> None:
    policies = concern(tmp_path, "probe", PROBE)
    file = policies / "custom/concerns/probe/probe.rego"
    shape = (
        f"{file}:4:1: `allow` of a concern must be a partial set: `allow contains … if {{ … }}`\n"
        f"    allow := true\n    ^\n{BE_A_SET}error: 1 fault in {file}\n"
    )
    assert pdp("bundle", "build", "-o", tmp_path / "b.tar.gz", "--policies", policies) == (2, "", shape)
    assert not (tmp_path / "b.tar.gz").exists()
    written(file, PROBE.replace("allow := true", "allow contains answer"))
    builtin = (
        f"{file}:3:11: the builtin http.send is not allowed in policies\n"
        '    answer := http.send({"method": "GET", "url": "http://localhost"})\n'
        f"{' ' * 14}^\n{NOT_PURE}error: 1 fault in {file}\n"
    )
    assert decided(wire(), "--policies", policies) == (2, "", builtin)


BEGUN = "check this line and the one before it; a rule begins like `deny contains reason.new(...) if {`"
SHUT = "close what is still open, such as a bracket"
BEGIN = "begin with `package custom.concerns.NAME`, or remove it"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", f"1:1: empty module\n    hint: the file is empty: {BEGIN}\n"),
        ("\n\n", f"1:1: empty module\n    hint: the file is empty: {BEGIN}\n"),
        ("# wip\n", f"1:1: empty module\n    # wip\n    ^\n    hint: the file has only comments: {BEGIN}\n"),
        (
            "package custom.concerns.probe\n\ndeny contains 1 if {\n\tinput.x  \n\n",
            f"4:9: unexpected eof token\n     input.x\n            ^\n    hint: {SHUT}\n",
        ),
        (
            "package custom.concerns.probe\n\ndeny contain x if {\n\ttrue\n}\n",
            (
                "3:1: a rule cannot begin like this: var cannot be used for rule name\n"
                "    deny contain x if {\n    ^\n"
                f"    hint: {BEGUN}\n"
            ),
        ),
        (
            "package custom.concerns.probe\n\n<<<<<<< HEAD\nx := [1\n=======\nx := 2\n>>>>>>> other\n",
            (
                "3:1: a merge conflict is not resolved\n    <<<<<<< HEAD\n    ^\n"
                "    hint: keep one version, and remove the markers\n"
            ),
        ),
        (
            "package custom.concerns.probe\n# \udcff",
            (
                "2:3: not text: byte 0xff is not UTF-8\n    #\n      ^\n"
                "    hint: save the file as UTF-8, and check that it is the right one\n"
            ),
        ),
    ],
    ids=["empty", "blank lines", "comments", "broken off", "rule", "conflict", "not UTF-8"],
)
def test_invalid_rego_is_reported_with_location(tmp_path: Path, text: str, complaint: str) -> None:
    policies = concern(tmp_path, "probe", text)
    file = f"{policies}/custom/concerns/probe/probe.rego"

    done = pdp("bundle", "build", "-o", tmp_path / "b.tar.gz", "--policies", policies)

    assert done == (2, "", f"{file}:{complaint}error: 1 fault in {file}\n")


HUNGRY = """\
# METADATA
# title: Hungry
# description: Costs more memory than there is.
package custom.concerns.hungry

# METADATA
# title: Allocates
# description: Takes too much memory.
# custom:
#   code: hungry.allocates
deny contains {"code": "hungry.allocates", "message": "", "details": {}} if {
	count([[a, b, c, d, e, f] | some a in _many; some b in _many; some c in _many
		some d in _many; some e in _many; some f in _many]) == 0
}

_many := [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]
"""


def test_call_is_denied_if_its_policy_exhausts_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.engine.opa.engine.TIMEOUT", 1)
    file = tmp_path / "hungry.tar.gz"
    assert pdp("bundle", "build", "-o", file, "--policies", concern(tmp_path, "hungry", HUNGRY)).code == 0
    for engine, code, message in (
        ("embedded", "engine.answer_invalid", "the policy used up its memory"),
        ("sidecar", "engine.timeout", "did not answer within 1 s"),
    ):
        done = decided(wire(), "--bundle", file, "--engine", engine, "--json")
        (reason,) = done.json["reasons"]
        assert (done.code, done.json["verdict"], reason["code"]) == (4, "DENY", code)
        assert message in reason["message"]


# Unusable bundles


def test_unusable_bundle_is_rejected(tmp_path: Path) -> None:
    file = written(tmp_path / "b.tar.gz", baseline_bundle_path().read_bytes()[:100_000])
    hint = "copy the file again, or build the bundle with `pdp bundle build`"
    expected = (
        2,
        "",
        f"error: {file}: the file is truncated\n    hint: {hint}\n    more: pdp explain bundle.invalid\n",
    )
    assert decided(wire(), "--bundle", file) == expected
    assert decided(wire(), "--bundle", file, "--engine", "sidecar") == expected
