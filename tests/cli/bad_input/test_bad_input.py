"""Commands that read a faulty input file exit with a documented code, and show the location of the fault and a hint."""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.bad_input.malformed_files import Choose, broken_document, broken_lines, broken_text
from tests.support import ROOT
from tests.support.command_line import Done, pdp, written

_ASKED: Final = os.environ.get("PDP_FUZZ_EXAMPLES")
EXAMPLES: Final = int(_ASKED or "8")
"""Number of broken files of each kind. A number from the environment also makes them random."""

FILE: Final = "@FILE"
FORMS: Final = {
    "refund": {"tool": "refund_order", "arguments": {"order_id": "O-77", "amount": 120}},
    "openai": {"id": "c", "type": "function", "function": {"name": "refund_order", "arguments": '{"amount": 1}'}},
    "responses": {"type": "function_call", "call_id": "c", "name": "refund_order", "arguments": '{"amount": 1}'},
    "anthropic": {"type": "tool_use", "id": "t", "name": "refund_order", "input": {"order_id": "O-77", "amount": 1}},
    "mcp": {"method": "tools/call", "params": {"name": "refund_order", "arguments": {"order_id": "O-77", "amount": 1}}},
    "gemini": {"functionCall": {"id": "1", "name": "refund_order", "args": {"order_id": "O-77", "amount": 1}}},
}
STEPS: Final = """
scenarios:
  - name: a plan
    golden: true
    plan:
      - {tool: refund_order, arguments: {order_id: O-1, amount: 1}}
      - {tool: search_tickets, arguments: {query: parcel}}
    returns: [paid, [T-1]]
    expect: [{verdict: ALLOW}, {status: accepted, result: [T-1]}]
  - name: straight to the engine
    request: {context: {action: desk.refund}}
    expect: {verdict: DENY, codes: [decision.request_invalid], details: {decision.request_invalid: {}}}
  - name: nobody approves it
    golden: true
    steps:
      - propose: {tool: refund_order, arguments: {order_id: O-77, amount: 120}}
        expect: {verdict: STEP_UP, trace: {risk_tier: high}}
      - deny: {claims: {sub: lead-1, roles: [desk.lead]}}
        at: "2026-01-01T10:05:00Z"
        expect: {approval: denied}
"""
RULES: Final = ("-m", "manifest.yaml", "-g", "governance.yaml")
CALLER: Final = ("-s", "session.yaml")
KEY: Final = ("--private-key", "key.pem")
CHECKS: Final = (
    "manifest-digest", "scenarios", "golden-schemas", "manifest-violations", "tools-proven", "actions-known",
    "unit-coverage", "mutation", "packs", "loosening", "manifest-version", "audit-pinned",
)  # fmt: skip


class Kind(NamedTuple):
    """A type of input file: a name, valid contents, the commands that read it, and a function that adds faults."""

    file: str
    good: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    broken: Callable[[bytes, Choose], bytes] = broken_document


KINDS: Final = {
    "manifest": Kind(
        "m.yaml",
        ("manifest.yaml", *(f"examples/{name}/manifest.yaml" for name in ("underwriting", "clinical", "memory"))),
        (("manifest", "lint", FILE), ("manifest", "export", FILE), ("manifest", "diff", "manifest.yaml", FILE),
         ("decide", "refund.json", "-m", FILE, "-g", "governance.yaml", *CALLER), ("init", "new", "--from", FILE)),
    ),
    "manifest in JSON": Kind(
        "m.json", ("examples/payments/manifest.json", "examples/rag/manifest.json"), (("manifest", "lint", FILE),)
    ),
    "registry record": Kind("r.yaml", ("examples/registry/manifest.yaml",), (("manifest", "lint", FILE),)),
    "governance": Kind(
        "g.yaml", ("governance.yaml", "examples/underwriting/governance.yaml"),
        (("manifest", "lint", "manifest.yaml", "-g", FILE),
         ("decide", "refund.json", "-m", "manifest.yaml", "-g", FILE, *CALLER)),
    ),
    "data": Kind(
        "d.yaml", ("data.yaml", "examples/rag/data.json", "examples/underwriting/data.yaml"),
        (("decide", "refund.json", *RULES, *CALLER, "--data", FILE),),
    ),
    "session": Kind(
        "s.yaml", ("session.yaml", "examples/memory/session.json"),
        (("decide", "refund.json", *RULES, "-s", FILE), ("explain", "refund.json", *RULES, "-s", FILE)),
    ),
    "proposal": Kind(
        "p.json", tuple(f"{form}.json" for form in FORMS),
        (("decide", FILE, *RULES, *CALLER), ("explain", FILE, *RULES, *CALLER)),
    ),
    "scenarios": Kind("x.scenarios.yaml", ("scenarios.yaml", "steps.scenarios.yaml"), (("test", FILE),)),
    "extending scenarios": Kind("x.scenarios.yaml", ("extending.scenarios.yaml",), (("test", FILE),)),
    "project": Kind("pdp.yaml", ("project.yaml",), (("doctor", FILE),)),
    "mutants": Kind("mutants.yaml", ("mutants.yaml",), (("mutate", "scenarios.yaml", "--only", "no such mutant"),)),
    "explanations": Kind(
        "e.yaml", ("explanations.yaml",),
        (("release", "check", "scenarios.yaml", "--bundle", "b.tar.gz", "--last", "b.tar.gz", "--explanations", FILE,
          *(part for name in CHECKS for part in ("--skip", name))),),
    ),
    "tools": Kind("tools.py", ("tools.py",), (("test", "scenarios.yaml"),), broken_text),
    "bundle": Kind(
        "x.tar.gz", ("b.tar.gz", "signed.tar.gz"),
        (("bundle", "inspect", FILE), ("bundle", "verify", FILE, "--public-key", "key.pem.pub"),
         ("bundle", "sign", FILE, "-o", "out.tar.gz", *KEY),
         ("decide", "refund.json", *RULES, *CALLER, "--bundle", FILE)),
        broken_text,
    ),
    "private key": Kind(
        "k.pem", ("key.pem",), (("bundle", "sign", "b.tar.gz", "-o", "out.tar.gz", "--private-key", FILE),), broken_text
    ),
    "public key": Kind(
        "k.pem", ("key.pem.pub",), (("bundle", "verify", "signed.tar.gz", "--public-key", FILE),), broken_text
    ),
    "audit": Kind(
        "a.jsonl", ("audit.jsonl",),
        (("audit", "show", FILE), ("audit", "verify", FILE), ("audit", "rotate", FILE),
         ("decide", "refund.json", *RULES, *CALLER, "--audit", FILE)),
        broken_lines,
    ),
    "requests": Kind(
        "l.jsonl", ("requests.jsonl",), (("bundle", "diff", "b.tar.gz", "b.tar.gz", "--generate", "1", "--log", FILE),),
        broken_lines,
    ),
    "database": Kind(
        "x.db", ("agent.db",),
        (("keys", "list", "--store", f"sqlite:///{FILE}"), ("approvals", "list", "--store", f"sqlite:///{FILE}"),
         ("budgets", "list", "--store", f"sqlite:///{FILE}"), ("token", "create", "a", "--scope", "decide", "--store", f"sqlite:///{FILE}"),
         ("db", "prune", f"sqlite:///{FILE}"), ("db", "upgrade", f"sqlite:///{FILE}")),
        broken_text,
    ),
    "rego": Kind(
        "policies/custom/concerns/replies/replies.rego", ("policies/custom/concerns/replies/replies.rego",),
        (("decide", "refund.json", *RULES, *CALLER, "--policies", "policies"), ("check", "--policies", "policies")),
        broken_text,
    ),
}  # fmt: skip
OF_OPA: Final = ("rego",)
_PLACE: Final = re.compile(r"^\S+:\d+:\d+: ", re.MULTILINE)
_ADVICE: Final = re.compile(
    r"hint: | must | is missing|not CEL|nested deeper|holds its policies|cannot assign|assigned above|rego_|"
    r"stands twice|is a duplicate|METADATA|annotation|conflicting|undefined|multiple|unused|not admitted|"
    r"does not match|match error"
)
_TOGETHER: Final = re.compile(
    "no such file|not a folder|without any mutant|must be lower than release|planning rule|scenarios? fails? without"
)
_STEERS: Final = re.compile("[\x00-\x08\x0b-\x1f\u202a-\u202e]")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """Write a valid file of every type to the working folder, and return the contents by file name."""
    folder = tmp_path_factory.mktemp("bad_input")
    shutil.copytree(ROOT / "pdp/cli/project", folder, dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "bundles/baseline.tar.gz", folder / "b.tar.gz")
    text = (folder / "scenarios.yaml").read_text().replace("policies: [policies]\n", "")
    project = (folder / "pdp.yaml").read_text().replace("policies: [policies]\n", "").replace("[.]", "[scenarios.yaml]")
    (folder / "pdp.yaml").unlink()
    written(folder / "scenarios.yaml", text)
    written(folder / "steps.scenarios.yaml", text.partition("scenarios:")[0] + STEPS)
    written(folder / "extending.scenarios.yaml", f"extends: scenarios.yaml\nsession: {{claims: {{sub: ann}}}}{STEPS}")
    written(folder / "project.yaml", project)
    written(folder / "explanations.yaml", "explained:\n  - difference: d3f2a9c1d04be\n    reason: it is meant\n")
    written(folder / "requests.jsonl", '{"context": {"action": "desk.refund"}, "subject": {"sub": "ann"}}\n' * 2)
    for form, call in FORMS.items():
        written(folder / f"{form}.json", call)
    with contextlib.chdir(folder), patch.dict(os.environ, {"PDP_PROJECT": ""}):
        assert pdp("bundle", "keygen", "-o", "key.pem").code == 0
        assert pdp("bundle", "sign", "b.tar.gz", "-o", "signed.tar.gz", *KEY).code == 0
        assert pdp("db", "upgrade", "sqlite:///agent.db").code == 0
        for _ in range(2):
            assert pdp("decide", "refund.json", *RULES, *CALLER, "--audit", "audit.jsonl").code == 3
        yield {name: (folder / name).read_bytes() for kind in KINDS.values() for name in kind.good}


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.opa if name in OF_OPA else ()) for name in KINDS]
)
def test_faults_in_files_are_shown_with_location(good: dict[str, bytes], name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=EXAMPLES, derandomize=not _ASKED, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: Any) -> None:
        def choose(below: int) -> int:
            return int(data.draw(st.integers(0, below - 1)))

        content = kind.broken(good[kind.good[choose(len(kind.good))]], choose)
        for command in kind.commands:
            _written_anew(kind.file, content)
            check_complaint(kind.file, content, pdp(*(part.replace(FILE, kind.file) for part in command)))

    try:
        run()
    finally:
        if kind.file in good:
            _written_anew(kind.file, good[kind.file])


def check_complaint(file: str, content: bytes, done: Done) -> None:
    """Check that a command exited with a documented code, and that its message names the file, the fault and a hint."""
    assert done.code in range(5), (content, done)
    assert not _STEERS.search(done.out + done.err), (content, done)
    if done.code == 1:
        assert done.err or done.out, content
    if done.code == 2:
        # Some faults exist only in a combination of files. The message of such a fault names the combination.
        assert file in done.err or _PLACE.search(done.err) or _TOGETHER.search(done.err), (content, done)
        assert _ADVICE.search(done.err), (content, done)


def _written_anew(name: str, content: bytes) -> None:
    """Write the original content to a file again, and remove the files that commands created."""
    file = Path(name)
    shutil.rmtree("new", ignore_errors=True)
    for beside in [*file.parent.glob(f"{file.name}-*"), *file.parent.glob(f"{file.name}.*")]:
        beside.unlink()
    file.write_bytes(content)
