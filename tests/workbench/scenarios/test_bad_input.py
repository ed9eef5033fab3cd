"""Faulty scenario files and policies through the command line: what is said, where, what to do; never a traceback."""

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
    """A project as `pdp init` makes it, with a proposal and a session beside it; files are named as from there."""
    for name, content in project_files().items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    # Commands name their files here, and nothing but faults is on standard error.
    (tmp_path / PROJECT_FILE).unlink()
    written(tmp_path / "proposal.json", PROPOSAL)
    written(tmp_path / "session.json", SESSION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


# Scenario files


def refused(text: str) -> str:
    """What `pdp test` says of a faulty scenario file; nothing is run."""
    written(Path("x.yaml"), text)
    done = pdp("test", "x.yaml")
    assert (done.code, done.out) == (2, "")
    return done.err


def test_of_many_faults_the_first_hundred_are_shown() -> None:
    said = refused(
        HEAD + "".join(f"  - {{name: n{at}, {CALL}, expect: {{verdict: MAYBE}}}}\n" for at in range(101))
    ).splitlines()

    assert said[0] == "x.yaml:5:95: `expect.verdict` must be one of ALLOW, STEP_UP, DENY, not `MAYBE`"
    assert said[-4].startswith("x.yaml:104:")
    assert said[-1] == "error: 101 faults in x.yaml; the first 100 are shown"
    assert len(said) == 100 * 3 + 1


def test_a_code_that_no_rule_gives() -> None:
    written(
        Path("x.yaml"),
        HEAD + f"  - {{name: a, {CALL}, expect: {{codes: [scope.missing, engine.timeout, x.y]}}}}\n",
    )
    done = pdp("test", "x.yaml", "--json")

    [scenario] = done.json["suites"][0]["scenarios"]
    assert done.code == 1
    assert [(one["code"], one["where"]) for one in scenario["diagnosis"]["missed"]] == [
        ("scope.missing", "no rule gives this code: did you mean `scopes.missing`?"),
        ("engine.timeout", "no rule gives this code"),
        ("x.y", "no rule gives this code"),
    ]


@pytest.mark.parametrize("duration", ["P36501D", "PT876000H0.000001S"])
def test_a_duration_that_no_clock_holds(duration: str) -> None:
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
WHOSE = "reason codes would not say whose they are"


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"bare": BARE + "deny not not\n"}, ["bare/bare.rego:6:10: unexpected not keyword"]),
        (
            {"limits": "true", "engine": "true", "idle": IDLE},
            [
                f"engine/engine.rego:4:1: codes that begin with `engine.` are not a user's: {WHOSE}",
                "idle/idle.rego:4:1: the concern custom.concerns.idle defines nothing",
                f"limits/limits.rego:4:1: the baseline has a concern limits: {WHOSE}",
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
        ({"net": IMPURE}, ["net/net.rego:13:55: the builtin http.send is not admitted in policies"]),
    ],
    ids=["not Rego", "names", "metadata", "impure"],
)
def test_policies_are_refused_by_every_command(modules: dict[str, str], expected: list[str]) -> None:
    """With the same faults in all of them, and nothing is written; `pdp check` asks for unit tests as well."""
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
def test_a_concern_that_calls_itself_or_asks_the_decision() -> None:
    concern("knot", "_f(1)", more="\n_f(x) if _g(x)\n\n_g(x) if _f(x)\n")
    file = f"{CONCERNS}/knot/knot.rego"
    rules, f, g = "rule data.custom.concerns.knot", "data.custom.concerns.knot._f", "data.custom.concerns.knot._g"

    done = pdp("test", "scenarios.yaml")

    assert (done.code, done.out) == (2, "")
    told = [line for line in done.err.splitlines() if not line.startswith("    hint:")]
    assert told == [
        f"{file}:15:1: {rules}._f is recursive: {f} -> {g} -> {f}", "    _f(x) if _g(x)", "    ^",
        f"{file}:17:1: {rules}._g is recursive: {g} -> {f} -> {g}", "    _g(x) if _f(x)", "    ^",
        f"error: 2 faults in {file}",
    ]  # fmt: skip

    Path(file).unlink()
    Path(file).parent.rmdir()
    concern("knot", 'data.authz.decision.verdict == "ALLOW"')
    checked = pdp("check", "--policies", "policies").err.splitlines()

    assert any(line.startswith(f"{file}:13:1: {rules}.deny may be recursive: ") for line in checked)
    # OPA's words for the same in the baseline's own files would only be in the way.
    assert {line.partition(":")[0] for line in checked if re.match(r"\S+\.rego:", line)} == {file}


CLASH = '\n_x := 1 if input.action.name == "reply_to_customer"\n\n_x := 2 if input.subject.id == "clerk-7"\n'
ENDLESS = """
_n := split("0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p q r s t u v w x y z", " ")

# Nothing is kept, so that time ends before memory does.
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
def test_a_concern_that_fails_or_does_not_end_is_a_deny(
    engine: str, body: str, more: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each command, on each engine; nobody waits for OPA to trace what the engine has given up."""
    # The conflict has all the time that it needs; what does not end is over when its time is.
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
    said = explained.out.splitlines()[0]
    # OPA's words have the address of the one process in them.
    message = decided.json["reasons"][0]["message"]
    assert said.startswith(f"DENY because {code}: {message if engine == 'embedded' else 'OPA at unix:'}")
    assert explained.out.splitlines()[-1] == "  rules: not known: the policy came to no decision"
    if code == "engine.timeout":
        # No verdict of any scenario: whoever reads a policy's results must not take it for one.
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
def test_engines_that_fail_alike_agree_whatever_their_words() -> None:
    concern("broken", "_x == 3", more=CLASH)
    expected = json.dumps({"verdict": "DENY", "codes": ["engine.answer_invalid"]})
    written(
        Path("x.yaml"),
        f"extends: scenarios.yaml\nscenarios: [{{name: a, propose: {json.dumps(PROPOSAL)}, expect: {expected}}}]\n",
    )

    done = pdp("test", "x.yaml", "--engine", "both")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2 passed: 1 file, embedded, sidecar, ")
