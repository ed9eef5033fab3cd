"""`pdp approvals` lists, shows and decides pending approvals. After a grant, the application's call runs once."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, Pep
from pdp.approvals.people import Refusal
from pdp.approvals.sentence import sentence
from pdp.audit.verify import verify_chain
from pdp.json import canonical
from pdp.manifest.model import EffectiveApproval
from pdp.stores.actions import ActionState
from pdp.stores.approvals import Approval
from pdp.stores.url import OpenStores
from tests.ledger import assistant
from tests.support import PATIENCE, ROOT, desk, payments
from tests.support.command_line import environment, pdp, written
from tests.support.payments import session, wire
from tests.support.postgres import empty_database
from tests.support.scripted import Scripted, until_approved

BOSS = {"iss": "https://id", "sub": "boss", "roles": ["payments.approver"]}
VICE = {**BOSS, "sub": "vice"}
OFFICER = {"sub": "officer-123", "roles": ["payments.approver"]}
NOTE = "note: this change is not recorded; give the application's audit stream with --audit\n"
APPLICATION = """
import json
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from pdp import Approvals, FileAudit, Pep
from pdp.stores.url import OpenStores
from tests.support import payments

def initiate_wire(**arguments):
    with open("wires", "a") as wires:
        print(arguments["amount"], file=wires)
    return {"wire_id": "w-1"}

log = FileAudit(Path("stream/audit.jsonl"), head=Path("head"))
with closing(OpenStores("sqlite:///agent.db", upgrade=True)) as stores, closing(log):
    pep = Pep(
        payments.effective(), payments.engine(), audit=log, tools={"initiate_wire": initiate_wire}, keys=stores.keys,
        actions=stores.actions, approvals=Approvals(stores.approvals),
    )
    evaluation = pep.call(payments.wire(), payments.session(time=None))
    print(json.dumps([evaluation.verdict, evaluation.executed]))
"""


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PDP_DATABASE_URL", "PDP_PROJECT", "PDP_AUDIT_KEY", "PDP_AUDIT_HEAD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = empty_database("sqlite", tmp_path)
    OpenStores(url, upgrade=True).close()
    monkeypatch.setenv("PDP_DATABASE_URL", url)
    return url


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened_here:
        yield opened_here


def opened(
    url: str,
    *,
    quorum: int = 1,
    time: str | None = None,
    run: str = "run-1",
    own: dict[str, Any] | None = None,
    **arguments: Any,
) -> Approval:
    """Return a pending approval of an application. With the claims `own`, the call's subject may decide it."""
    effective = payments.effective()
    waits = EffectiveApproval(approvers=("$subject" if own else "payments.approver",), quorum=quorum, expires="PT1H")
    entry = effective.tools["initiate_wire"].model_copy(update={"approval": waits})
    asked = (
        Pep(effective, Scripted(until_approved))
        .decide(wire(**arguments), session(time=time, run_id=run, **({"claims": own} if own else {})))
        .request
    )
    task = {"rationale": "a late invoice"}
    with closing(OpenStores(url)) as stores:
        approval = Approval.asked(canonical(asked), entry, ["limits.exceeded"], claims=own)
        return stores.approvals.add(replace(approval, task=task))


def stored(url: str, approval: Approval) -> Approval:
    with closing(OpenStores(url)) as stores:
        return Approvals(stores.approvals).get(approval.id)


def file_of(claims: dict[str, Any]) -> Path:
    return written(Path(f"{claims['sub']}.json"), {"claims": claims})


@pytest.mark.process
def test_application_runs_a_granted_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("stream").mkdir()
    stream = Path("stream/audit.jsonl")

    def proposed() -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", APPLICATION], capture_output=True, text=True, check=False,
            env=environment(PYTHONPATH=str(ROOT)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: list[Any] = json.loads(done.stdout)
        return answer

    assert proposed() == ["STEP_UP", False]
    place = ("--store", "sqlite:///agent.db")
    (waiting,) = pdp("approvals", "list", *place, "--json").json
    monkeypatch.setenv("PDP_AUDIT_HEAD", "head")
    granted = pdp("approvals", "grant", waiting["id"], "-s", file_of(BOSS), *place, "--audit", stream)
    assert (granted.code, granted.err) == (0, "")
    assert [proposed() for _ in range(2)] == [["ALLOW", True], ["ALLOW", False]]

    assert Path("wires").read_text() == "47500\n"
    with closing(OpenStores("sqlite:///agent.db")) as stores:
        (action,) = stores.actions.list()
    assert (action.id, action.state) == (waiting["action_id"], ActionState.COMMITTED)
    lines = stream.read_bytes().splitlines(keepends=True)
    assert verify_chain(lines) == len(lines)
    events = map(json.loads, lines)
    (step,) = [event for event in events if event["type"] == "approval.granted"]
    assert (step["subject"], step["approval_id"], step["status"]) == ("boss", waiting["id"], "granted")


@pytest.mark.process
def test_pending_approval_is_listed_and_shown_escaped(store: str) -> None:
    plain, odd = opened(store), opened(store, reference="\x1b[2J")
    over = opened(store, time="2020-01-01T10:00:00Z", amount=1)

    waiting = ['"INV-8842"', '"\\u001b[2J"']
    wire = r'initiate_wire: "bene-acme-441" with amount {}, reference {}, source_account "acct-operating-4412"'
    lines = [
        re.escape(f"{each.id}  {wire.format(47500, reference)} - asked by officer-123, ")
        + r"\d+ s ago, (59|60) min left"
        for each, reference in zip((plain, odd), waiting, strict=True)
    ]
    assert re.fullmatch("\n".join([*lines, ""]), pdp("approvals", "list").out)
    lines.append(
        re.escape(f"{over.id}  {wire.format(1, waiting[0])} - asked by officer-123, ") + r"\d+ days ago, expired"
    )
    assert re.fullmatch("\n".join([*lines, ""]), pdp("approvals", "list", "--all").out)
    assert pdp("approvals", "list", "--json").json == [plain.as_json(), odd.as_json()]
    assert pdp("approvals", "show", odd.id, "--json").json == odd.as_json()
    assert pdp("approvals", "show", odd.id).out == (
        f"pending  {odd.id}\n"
        "  tool       initiate_wire\n"
        "  argument   amount = 47500\n"
        '  argument   beneficiary_id = "bene-acme-441"\n'
        '  argument   reference = "\\u001b[2J"\n'
        '  argument   source_account = "acct-operating-4412"\n'
        '  task       rationale = "a late invoice"\n'
        "  run        run-1\n"
        "  asked by   officer-123\n"
        "  reasons    limits.exceeded\n"
        "  approvers  payments.approver\n"
        "  quorum     0 of 1 granted\n"
        f"  opened     {odd.opened_at}\n"
        f"  expires    {odd.expires_at}\n"
    )


def test_lines_name_the_pages_of_approvals_in_the_store_of_a_project(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = opened(store)
    page = f"https://pdp.example/desk/console/approvals/{approval.id}"
    monkeypatch.delenv("PDP_DATABASE_URL")
    written(Path("pdp.yaml"), f"store: {store}\npublic_url: https://pdp.example/desk/\n")

    assert pdp("approvals", "list").out.endswith(f" min left  {page}\n")
    assert f"\n  page       {page}\n" in pdp("approvals", "show", approval.id).out
    assert pdp("approvals", "show", approval.id, "--json").json["url"] == page
    assert "pdp.example" not in pdp("approvals", "list", "--store", store).out


TO = {"path": "/to", "role": "destination"}
SUM = {"path": "/sum", "role": "value"}


@pytest.mark.parametrize(
    ("arguments", "labels", "resource", "text"),
    [
        ({"to": "eve", "sum": 12345, "n": 1}, [TO, SUM], None, '"eve" with sum 12345, n 1'),
        ({"to": ["eve", "al"]}, [{**TO, "path": "/to/1"}], None, '["eve","al"]'),
        ({"id": "f-1", "mode": "x"}, [], {"type": "file", "id": "f-1"}, '"f-1" with mode "x"'),
        ({"a": "x" * 400, "b": 1}, [], None, f'b 1, a "{"x" * 29}[... 342 characters left out ...]'),
        (
            {"tool": "Bash", "input": {"command": "git push", "note": "a\n"}, "target": "git push"},
            [], {"type": "command", "id": "git push"}, '"git push" with tool "Bash", note "a\\n"',
        ),
        ({}, [], None, "no arguments"),
        (dict.fromkeys("abcdefghij", 0), [], None, "a 0, b 0, c 0, d 0, e 0, f 0, g 0, h 0, 2 more"),
    ],
)  # fmt: skip
def test_sentence_says_what_a_call_acts_on(
    store: str, arguments: dict[str, Any], labels: list[Any], resource: dict[str, str] | None, text: str
) -> None:
    approval = opened(store)
    request = approval.request
    request["context"] |= {"arguments": arguments, "flow": {"arguments": labels}}
    request["resource"] = resource or {"type": "tool", "id": "initiate_wire"}

    assert sentence(replace(approval, body=canonical(request))).startswith(f"initiate_wire: {text}")


def test_approvals_are_filtered_by_run_tool_state_and_person(store: str) -> None:
    first, second = opened(store), opened(store, run="run-2", amount=1)
    own = opened(store, own={**session().claims, "act": {"sub": "agent:wires"}}, amount=2)
    pdp("approvals", "deny", second.id, "-s", file_of(BOSS))
    boss, officer = ("--mine", "-s", file_of(BOSS)), ("--mine", "-s", file_of({**OFFICER, "jti": "person"}))

    def listed(*options: object) -> list[str]:
        return [each["id"] for each in pdp("approvals", "list", "--json", *options).json]

    assert [listed("--run", "run-1"), listed("--run", "run-2")] == [[first.id, own.id], []]
    assert [listed("--tool", "initiate_wire"), listed("--tool", "x")] == [[first.id, own.id], []]
    assert [listed("--state", "denied"), listed("--all", "--run", "run-2")] == [[second.id]] * 2
    assert [listed(*boss), listed(*officer)] == [[first.id], []]
    assert pdp("approvals", "list", "--run", "run-2").out == "no pending approvals that match\n"
    assert pdp("approvals", "list", "--state", "expired").out == "no expired approvals\n"
    assert pdp("approvals", "show", first.id[:6]).out.startswith(f"pending  {first.id}\n")


def test_several_approvals_and_whole_runs_are_ended_in_one_command(store: str) -> None:
    own = opened(store, own={**session().claims, "act": {"sub": "agent:wires"}}, amount=9)
    wires = [opened(store, amount=amount) for amount in (1, 2, 3)]
    other = opened(store, run="run-2", amount=4)
    pdp("approvals", "grant", wires[2].id, "-s", file_of(BOSS))

    done = pdp("approvals", "deny", wires[0].id[:8], own.id, wires[1].id, "-s", file_of(BOSS), "--why", "not now")
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()] == [wires[0].id, wires[1].id]
    assert all(line.endswith(", denied by boss (https://id)") for line in done.out.splitlines())
    assert done.err.splitlines()[1:] == [
        f"error: approval {own.id}: the claims have none of the roles that can approve the call: $subject"
    ]
    assert [stored(store, each).why for each in wires] == ["not now", "not now", None]

    rest = pdp("approvals", "withdraw", "--run", "run-1", "-s", file_of(OFFICER), "--json")
    assert (rest.code, [each["id"] for each in rest.json]) == (0, [own.id, wires[2].id])
    assert [stored(store, each).state for each in (own, wires[2], other)] == ["withdrawn", "withdrawn", "pending"]
    again = pdp("approvals", "withdraw", "--run", "run-1", "-s", file_of(OFFICER))
    assert (again.code, again.out) == (0, "no open approvals of run run-1\n")


@pytest.mark.process
def test_watch_asks_about_each_approval_in_a_terminal(store: str, stack: ExitStack) -> None:
    asked = [opened(store, amount=amount, reference="\x1b[2J") for amount in (1, 2, 3, 4)]
    opened(store, own={**session().claims, "act": {"sub": "agent:wires"}})  # The boss may not decide this one.
    terminal, line = os.openpty()
    watching = stack.enter_context(subprocess.Popen(
        [sys.executable, "-m", "pdp", "approvals", "watch", "-s", str(file_of(BOSS))],
        stdin=line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(PYTHONPATH=str(ROOT)),
    ))  # fmt: skip
    stack.callback(watching.kill)
    output = watching.stdout
    assert output is not None

    def until_asked(question: str = "[y]es, [n]o, [s]kip, [q]uit?") -> list[str]:
        shown: list[str] = []
        while text := output.readline().decode():
            if text == f"{question}\n":
                return shown
            shown.append(text.removesuffix("\n"))
            assert shown[-1].isprintable()
        pytest.fail("the command has ended")

    def answer(text: str) -> None:
        os.write(terminal, f"{text}\n".encode())

    shown = until_asked()
    assert shown[0] == f"pending  {asked[0].id}"
    assert '  argument   reference = "\\u001b[2J"' in shown
    assert shown[-1].startswith('initiate_wire: "bene-acme-441" with amount 1,')
    for unusable in ("", "maybe", "yes please", "run", "until P7D"):
        answer(unusable)
        assert until_asked() == []
    answer("y")
    assert until_asked()[:2] == [f"granted  {asked[0].id}", f"pending  {asked[1].id}"]
    answer("n")
    assert until_asked("reason (optional):") == []
    answer("unknown payee")
    assert until_asked()[:2] == [f"denied  {asked[1].id}", f"pending  {asked[2].id}"]
    pdp("approvals", "deny", asked[2].id, "-s", file_of(VICE))
    answer("y")
    assert until_asked()[0] == f"pending  {asked[3].id}"
    answer("s")
    answer("y")  # Nothing is asked now, so this does not answer the next question.
    last = opened(store, amount=5)
    assert until_asked()[0] == f"pending  {last.id}"
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=PATIENCE)
    os.close(terminal)
    os.close(line)

    assert watching.returncode == 0
    assert errors.decode().splitlines()[1:] == [
        "waiting for approvals; q or Ctrl-C ends",
        *[f"error: approval {asked[0].id}: it {Refusal.REACH.message[3:].format(reaches='no lasting grant')}"] * 2,
        f"error: approval {asked[2].id}: it is denied",
    ]
    assert [stored(store, each).state for each in (*asked, last)] == [
        "granted", "denied", "denied", "pending", "pending",
    ]  # fmt: skip
    assert stored(store, asked[1]).why == "unknown payee"


def test_watch_ends_with_its_input(store: str) -> None:
    first, second = opened(store, amount=1), opened(store, amount=2)

    done = pdp("approvals", "watch", "-s", file_of(BOSS), stdin=b"n too much\n")

    assert done.code == 0
    assert [(stored(store, each).state, stored(store, each).why) for each in (first, second)] == [
        ("denied", "too much"), ("pending", None),
    ]  # fmt: skip


@pytest.mark.process
def test_repeated_grant_by_one_person_does_not_count_twice_for_the_quorum(store: str) -> None:
    asked = opened(store, quorum=2)

    first = pdp("approvals", "grant", asked.id, "-s", file_of(BOSS), "--json")
    again = pdp("approvals", "grant", asked.id, "-s", file_of(BOSS))
    last = pdp("approvals", "grant", asked.id, "-s", file_of(VICE))

    assert (first.code, first.json["state"], first.err) == (0, "pending", NOTE)
    refusal = "the same person has already granted the approval, but 2 people are needed"
    more = "    more: pdp explain approvals.already_granted\n"
    assert (again.code, again.out, again.err) == (1, "", f"{NOTE}error: approval {asked.id}: {refusal}\n{more}")
    assert (last.code, last.out.splitlines()[0]) == (0, f"granted  {asked.id}")
    assert "  quorum     2 of 2 granted\n" in last.out
    assert [(grant.iss, grant.sub) for grant in stored(store, asked).grants] == [
        ("https://id", "boss"), ("https://id", "vice"),
    ]  # fmt: skip


@pytest.mark.process
def test_person_approves_call_of_own_agent_only_with_another_token(store: str) -> None:
    person = {"sub": "officer-123", "iss": "https://id"}
    asked = opened(store, own={**session().claims, **person, "jti": "call", "act": {"sub": "agent:wires"}})

    same = pdp("approvals", "grant", asked.id, "-s", file_of({**person, "jti": "call"}))
    granted = pdp("approvals", "grant", asked.id, "-s", file_of({**person, "jti": "person"}))

    assert (same.code, same.out) == (1, "")
    assert same.err.endswith(
        f"error: approval {asked.id}: the call used this token or client: approve with another token (jti, azp, "
        "client_id or sid must differ from the call's, and the client must not be the agent)\n"
        "    more: pdp explain approvals.same_token\n"
    )
    assert (granted.code, granted.out.splitlines()[0]) == (0, f"granted  {asked.id}")
    assert "  approvers  $subject (officer-123 (https://id), by another token)\n" in granted.out
    (grant,) = stored(store, asked).grants
    assert f"  granted    by officer-123 (https://id) as $subject at {grant.at}\n" in granted.out


@pytest.mark.process
def test_approver_can_deny_and_requester_can_withdraw_an_approval(store: str) -> None:
    denied, withdrawn = opened(store), opened(store, amount=50_000)

    done = pdp("approvals", "deny", denied.id, "-s", file_of(BOSS), "--why", "unknown payee")
    assert (done.code, done.out.splitlines()[0]) == (0, f"denied  {denied.id}")
    closed = stored(store, denied)
    assert done.out.splitlines()[-1] == f"  closed     {closed.closed_at} by boss (https://id): unknown payee"
    assert pdp("approvals", "withdraw", withdrawn.id, "-s", file_of(OFFICER)).code == 0
    assert [stored(store, approval).state for approval in (denied, withdrawn)] == ["denied", "withdrawn"]


@pytest.mark.parametrize(
    ("step", "who", "refusal"),
    [
        ("grant", OFFICER, "the requester of a call cannot decide on its approval"),
        (
            "grant",
            {**BOSS, "roles": "payments.approver"},
            "the claims have none of the roles that can approve the call:",
        ),
        ("deny", {**BOSS, "roles": []}, "the claims have none of the roles that can approve the call:"),
        ("grant", {**BOSS, "act": {"sub": "agent:x"}}, "the claims belong to an acting agent, but a person"),
        ("withdraw", BOSS, "only a requester can withdraw the approval"),
    ],
)
def test_approval_commands_reject_unauthorized_steps(step: str, who: dict[str, Any], refusal: str) -> None:
    url = "sqlite:///agent.db"
    OpenStores(url, upgrade=True).close()
    asked = opened(url)

    done = pdp("approvals", step, asked.id, "-s", file_of(who), "--store", url)

    assert (done.code, done.out) == (1, "")
    assert f"error: approval {asked.id}: {refusal}" in done.err
    assert stored(url, asked) == asked


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (["list"], 2, "no database is given"),
        (["list", "--mine"], 2, "--mine needs a person"),
        (["list", "--all", "--state", "denied"], 2, "--all excludes --state"),
        (["deny", "-s", "boss.json"], 2, "no approval is given"),
        (["list", "--store", "sqlite:///none.db"], 2, "none.db does not exist"),
        (["show", "x\x1b", "--store", "sqlite:///agent.db"], 1, "approval x\\x1b: no approval has that id"),
        (["grant", "x", "--store", "sqlite:///agent.db"], 2, "no session file is given"),
        (["grant", "x", "-s", "none.json", "--store", "sqlite:///agent.db"], 2, "none.json"),
    ],
)
def test_approval_commands_report_unusable_arguments(line: list[str], code: int, message: str) -> None:
    OpenStores("sqlite:///agent.db", upgrade=True).close()
    file_of(BOSS)
    store = [] if "--store" in line or line == ["list"] else ["--store", "sqlite:///agent.db"]

    done = pdp("approvals", *line, *store)

    assert (done.code, done.out) == (code, "")
    assert message in done.err


def test_approval_commands_take_the_store_but_not_the_approver_from_the_project() -> None:
    OpenStores("sqlite:///agent.db", upgrade=True).close()
    asked = opened("sqlite:///agent.db")
    written(Path("pdp.yaml"), "store: sqlite:///agent.db\nsession: boss.json\n")
    file_of(BOSS)

    assert pdp("approvals", "list").out.startswith(asked.id)
    assert pdp("approvals", "grant", asked.id).code == 2
    assert pdp("approvals", "grant", asked.id, "-s", "boss.json").code == 0


@pytest.mark.process
def test_pending_approval_shows_sources_of_argument_values(tmp_path: Path) -> None:
    url = empty_database("sqlite", tmp_path)
    effective = assistant.effective()
    with closing(OpenStores(url, upgrade=True)) as stores, desk.engine(effective) as engine:
        approvals = Approvals(stores.approvals)
        pep = Pep(effective, engine, tools={"read_mail": lambda mail_id: assistant.MAIL}, approvals=approvals)
        pep.call(assistant.READ, assistant.session(), tool_call_id="c-17")
        asked = pep.call(assistant.invite("y@other.example"), assistant.session()).approval
    assert asked is not None

    shown = pdp("approvals", "show", asked.id, "--store", url).out.splitlines()

    assert [line.split(maxsplit=1)[1] for line in shown if line.split()[0] == "origin"] == [
        "the run has read untrusted text from: read_mail",
        "`participants/0` (destination) was read in the result of read_mail (call c-17), and you did not name it",
        "`title` (body) comes only from the model: neither you nor any result contains it",
    ]
