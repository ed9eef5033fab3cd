"""Faulty scenario files and policies cause messages with location and hint, but no traceback."""

import json
import re
from pathlib import Path

import pytest

from pdp.cli.commands.init import project_files
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.project.file import PROJECT_FILE
from tests.support.command_line import Done, pdp, written

SESSION = {
    "claims": {
        "sub": "clerk-7",
        "emts": {"desk.read": True, "desk.reply": True, "desk.refund": True},
        "limits": {"refunds.auto_approved": 50},
    },
    "idempotency_key": "refund-1",
}
PROPOSAL = {
    "tool": "reply_to_customer",
    "arguments": {"ticket_id": "T-1", "recipient": "ada@customer.example", "text": "hi"},
}
HEAD = """\
manifest: manifest.yaml
governance: governance.yaml
session: {claims: {sub: clerk-7}}
scenarios:
"""
CALL = "propose: {tool: search_tickets, arguments: {query: parcel}}"
CONCERNS = "policies/custom/concerns"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project with `pdp init`, add a proposal and a session, and change to its folder."""
    for name, content in project_files().items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    # Without a project file, messages contain file names relative to the working folder, and standard error contains
    # only messages about faults.
    (tmp_path / PROJECT_FILE).unlink()
    written(tmp_path / "proposal.json", PROPOSAL)
    written(tmp_path / "session.json", SESSION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


# Scenario files


def refused(text: str) -> str:
    """Return the error output of `pdp test` for a faulty scenario file."""
    written(Path("x.yaml"), text)
    done = pdp("test", "x.yaml")
    assert (done.code, done.out) == (2, "")
    return done.err


def test_error_message_shows_the_first_hundred_faults_of_scenario_files() -> None:
    lines = refused(
        HEAD + "".join(f"  - {{name: n{at}, {CALL}, expect: {{verdict: MAYBE}}}}\n" for at in range(101))
    ).splitlines()

    assert lines[0] == "x.yaml:5:95: `expect.verdict` must be one of ALLOW, STEP_UP, DENY, not `MAYBE`"
    assert lines[-4].startswith("x.yaml:104:")
    assert lines[-1] == "error: 101 faults in x.yaml; the first 100 are shown"
    assert len(lines) == 100 * 3 + 1


def test_failed_scenario_says_which_expected_codes_have_no_rule() -> None:
    written(
        Path("x.yaml"),
        HEAD + f"  - {{name: a, {CALL}, expect: {{codes: [scope.missing, engine.timeout, x.y]}}}}\n",
    )
    done = pdp("test", "x.yaml", "--json")

    [scenario] = done.json["suites"][0]["scenarios"]
    assert done.code == 1
    assert [(one["code"], one["where"]) for one in scenario["diagnosis"]["missed"]] == [
        ("scope.missing", "no rule has this code: did you mean `scopes.missing`?"),
        ("engine.timeout", "no rule has this code"),
        ("x.y", "no rule has this code"),
    ]


@pytest.mark.parametrize("duration", ["P36501D", "PT876000H0.000001S"])
def test_scenario_with_a_too_long_duration_is_a_fault(duration: str) -> None:
    written(Path("governance.yaml"), Path("governance.yaml").read_text().replace("PT1H", duration))
    done = pdp("manifest", "lint", "manifest.yaml", "-g", "governance.yaml")

    assert done == Done(
        2,
        "",
        f"governance.yaml:16:60: `approval.expires` must be at most a hundred years (P36500D), not `{duration}`\n"
        f"        approval: {{approvers: [desk.lead], quorum: 1, expires: {duration}}}\n"
        f"    {' ' * 59}^\n"
        "    hint: such as PT10S, PT1H or P1D\n"
        "error: 1 fault in governance.yaml\n",
    )


# Policies

METADATA = "# METADATA\n# title: T\n# description: D.\n"
RULE = METADATA + "# custom:\n#   code: {name}.x\ndeny contains reason.new(rego.metadata.rule(), {{}}) if {body}\n"
WHOLE = METADATA + "package {package}\n\nimport data.authz.lib.reason\n\n" + RULE

FILES = ["-m", "manifest.yaml", "-g", "governance.yaml"]
ONE_CALL = ["proposal.json", *FILES, "-s", "session.json", "--data", "data.yaml", "--policies", "policies"]
COMMANDS: dict[str, list[str]] = {
    "test": ["test", "scenarios.yaml"],
    "decide": ["decide", *ONE_CALL],
    "explain": ["explain", *ONE_CALL],
    "build": ["bundle", "build", "-o", "b.tar.gz", *FILES, "--policies", "policies", "--data", "data.yaml"],
}


def concern(name: str, body: str, *, package: str = "custom.concerns.{name}", more: str = "") -> None:
    folder = Path(CONCERNS, name)
    folder.mkdir()
    written(folder / f"{name}.rego", WHOLE.format(name=name, body=body, package=package.format(name=name)) + more)


IMPURE = 'http.send({"method": "get", "url": "http://example.com"}).status_code == 200'
BARE = "package custom.concerns.bare\n\nimport data.authz.lib.reason\n\ndeny contains reason.new({}, {})\n"
IDLE = METADATA + "package custom.concerns.idle\n\n_y := 1\n"
WHOSE = "reason codes would be ambiguous"


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"bare": BARE + "deny not not\n"}, ["bare/bare.rego:6:10: unexpected not keyword"]),
        (
            {"limits": "true", "engine": "true", "idle": IDLE},
            [
                f"engine/engine.rego:4:1: the name engine is reserved: {WHOSE}",
                "idle/idle.rego:4:1: the concern custom.concerns.idle defines no finding",
                f"limits/limits.rego:4:1: the baseline has a concern named limits: {WHOSE}",
            ],
        ),
        (
            {"bare": BARE},
            [
                (
                    "bare/bare.rego:1:1: the concern custom.concerns.bare has no title and no description in its "
                    "package's METADATA"
                ),
                "bare/bare.rego:5:1: `deny` has no title and no description and no custom.code in its METADATA",
            ],
        ),
        ({"net": IMPURE}, ["net/net.rego:13:55: the builtin http.send is not allowed in policies"]),
    ],
    ids=["not Rego", "names", "metadata", "impure"],
)
def test_every_command_rejects_faulty_policies(modules: dict[str, str], expected: list[str]) -> None:
    for name, text in modules.items():
        if text.startswith(("package", METADATA)):
            Path(CONCERNS, name).mkdir()
            written(Path(CONCERNS, name, f"{name}.rego"), text)
        else:
            concern(name, text)

    for command in (*COMMANDS.values(), ["check", "--policies", "policies"]):
        done = pdp(*command)
        assert (done.code, done.out) == (2, ""), done
        faults = [line for line in done.err.splitlines() if re.match(r"\S+\.rego:\d", line)]
        assert [fault for fault in faults if "has no unit tests" not in fault] == [
            f"{CONCERNS}/{one}" for one in expected
        ]
    assert not Path("b.tar.gz").exists()


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_recursive_concern_is_rejected() -> None:
    concern("knot", "_f(1)", more="\n_f(x) if _g(x)\n\n_g(x) if _f(x)\n")
    file = f"{CONCERNS}/knot/knot.rego"
    rules, f, g = "rule data.custom.concerns.knot", "data.custom.concerns.knot._f", "data.custom.concerns.knot._g"

    done = pdp("test", "scenarios.yaml")

    assert (done.code, done.out) == (2, "")
    faults = [line for line in done.err.splitlines() if not line.startswith("    hint:")]
    assert faults == [
        f"{file}:15:1: {rules}._f is recursive: {f} -> {g} -> {f}", "    _f(x) if _g(x)", "    ^",
        f"{file}:17:1: {rules}._g is recursive: {g} -> {f} -> {g}", "    _g(x) if _f(x)", "    ^",
        f"error: 2 faults in {file}",
    ]  # fmt: skip

    Path(file).unlink()
    Path(file).parent.rmdir()
    concern("knot", 'data.authz.decision.verdict == "ALLOW"')
    checked = pdp("check", "--policies", "policies").err.splitlines()

    assert any(line.startswith(f"{file}:13:1: {rules}.deny may be recursive: ") for line in checked)
    # OPA may also report faults in the baseline's files. Such faults would distract from the faulty file.
    assert {line.partition(":")[0] for line in checked if re.match(r"\S+\.rego:", line)} == {file}


CLASH = '\n_x := 1 if input.action.name == "reply_to_customer"\n\n_x := 2 if input.subject.id == "clerk-7"\n'
ENDLESS = """
_n := split("0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p q r s t u v w x y z", " ")

# The rule keeps no values, so it times out before memory runs out.
_all contains f if {
	some a in _n
	some b in _n
	some c in _n
	some d in _n
	some e in _n
	some f in _n
	f == "-"
}
"""


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
@pytest.mark.parametrize(
    ("engine", "body", "more", "code"),
    [
        ("sidecar", "_x == 3", CLASH, "engine.answer_invalid"),
        ("embedded", "count(_all) > 1", ENDLESS, "engine.timeout"),
        ("sidecar", "count(_all) > 1", ENDLESS, "engine.timeout"),
    ],
    ids=["conflict", "endless", "endless beside it"],
)
def test_scenario_call_is_denied_if_a_concern_fails_or_does_not_end(
    engine: str, body: str, more: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the endless rule must time out, so the test with conflicting rules keeps the default timeout.
    if code == "engine.timeout":
        defaults = {**(EmbeddedEngine.__init__.__kwdefaults__ or {}), "deadline": 0.5}
        monkeypatch.setattr(EmbeddedEngine.__init__, "__kwdefaults__", defaults)
        monkeypatch.setattr("pdp.engine.wasm.engine.DEADLINE", 0.5)
        monkeypatch.setattr("pdp.engine.opa.engine.TIMEOUT", 0.5)
    concern("broken", f'{{\n\tinput.action.name == "reply_to_customer"\n\t{body}\n}}', more=more)

    decided = pdp(*COMMANDS["decide"], "--engine", engine, "--json")
    explained = pdp(*COMMANDS["explain"], "--all", "--engine", engine)
    seconds = ("--engine-timeout", "0.5") if code == "engine.timeout" else ()
    tested = pdp("test", "scenarios.yaml", "--engine", engine, "--json", *seconds)

    assert (decided.code, [each["code"] for each in decided.json["reasons"]]) == (4, [code])
    assert (explained.code, explained.err) == (4, "")
    line = explained.out.splitlines()[0]
    # With OPA, the message contains the path of a socket, which differs in each process, so only the start is compared.
    message = decided.json["reasons"][0]["message"]
    assert line.startswith(f"DENY because {code}: {message if engine == 'embedded' else 'OPA at unix:'}")
    assert "  rules: not known: the policy made no decision" in explained.out.splitlines()
    if code == "engine.timeout":
        # The run reports the timeout as an error, because the timeout is not the verdict of a scenario.
        assert (tested.code, tested.out) == (2, "")
        assert re.match(r"error: scenarios.yaml:\d+ a customer is answered: no verdict: ", tested.err)
        return
    assert tested.code == 1
    found = {
        one["name"]: code in str(one["steps"]) for one in tested.json["suites"][0]["scenarios"] if not one["passed"]
    }
    assert found == {"a customer is answered": True, "a stranger is not answered": True}


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_engines_count_as_agreeing_if_both_fail_with_the_same_code() -> None:
    concern("broken", "_x == 3", more=CLASH)
    expected = json.dumps({"verdict": "DENY", "codes": ["engine.answer_invalid"]})
    written(
        Path("x.yaml"),
        f"extends: scenarios.yaml\nscenarios: [{{name: a, propose: {json.dumps(PROPOSAL)}, expect: {expected}}}]\n",
    )

    done = pdp("test", "x.yaml", "--engine", "both")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2 passed: 1 file, embedded, sidecar, ")
