"""Replay tasks of AgentDojo through an enforcement point: its calls and functions, with a new world for each run."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final

import yaml
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suite
from agentdojo.task_suite.task_suite import TaskSuite, read_suite_file
from pydantic_core import to_jsonable_python

from benchmarks.protection_attacks import calls_of, injected_text, plant
from benchmarks.protection_knowing import SHOP, Garbler, loses, party_calls, seeds, shop, wanted, with_shop
from pdp import Approvals, Evaluation, Pep, Verdict
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective

VERSION: Final = "v1.2.2"
SUITES: Final = ("banking", "slack", "travel", "workspace")
PROFILES: Final = ("scopes", "today", "watch", "balanced", "strict")

_EXAMPLES: Final = Path(__file__).parents[1] / "examples" / "agentdojo"
_LABELS: Final = frozenset(("result", "roles", "admits", "destructive", "flow"))
_CLAIMS: Final = {"sub": "emma", "scope": "assistant"}
_PERSON: Final = {"sub": "emma.johnson", "roles": ["owner"]}

# Without labels, the effect class alone asks: for calls that cost money, send mail, give access or cannot be undone.
_HEAVY: Final = frozenset((
    "add_calendar_event_participants", "cancel_calendar_event", "create_calendar_event", "delete_email", "delete_file",
    "invite_user_to_slack", "post_webpage", "remove_user_from_slack", "reschedule_calendar_event", "reserve_car_rental",
    "reserve_hotel", "reserve_restaurant", "schedule_transaction", "send_email", "send_money", "share_file",
    "update_password", "update_scheduled_transaction",
))  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One call with its first and its last decision. `asked`: a person was asked; `executed`: the tool ran."""

    call: FunctionCall
    first: Evaluation
    last: Evaluation
    asked: bool
    executed: bool
    attacker: bool


@dataclass
class Run:
    """The result of one task. `shown`: a result contained the attacker's text; `lost`: he got money, password or
    access.
    """

    steps: list[Step] = field(default_factory=list)
    shown: bool = False
    attained: bool = False
    useful: bool = False
    lost: bool = False

    @property
    def asked(self) -> int:
        """The number of the user's calls for which a person was asked."""
        return sum(step.asked for step in self.steps if not step.attacker)

    @property
    def is_whole(self) -> bool:
        """True if all of the user's calls ran."""
        return all(step.executed for step in self.steps if not step.attacker)


class World:
    """The environment of the current run, with AgentDojo's functions."""

    def __init__(self, suite: TaskSuite[Any]) -> None:
        self.suite = suite
        self.environment: Any = None
        self.garbler: Garbler | None = None
        self._runtime = FunctionsRuntime(suite.tools)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the functions for an enforcement point: plain JSON in and out."""
        return {tool.name: self._function(tool.name) for tool in self.suite.tools} | {name: shop(name) for name in SHOP}

    def _function(self, name: str) -> Callable[..., Any]:
        def run(**arguments: Any) -> Any:
            result, _ = self._runtime.run_function(self.environment, name, arguments, raise_on_error=True)
            shown = to_jsonable_python(result)
            return shown if self.garbler is None else self.garbler(name, shown)

        return run


class Replay:
    """The tasks of one suite under one profile: `watch`, `balanced` or `strict` with labels, `scopes` or `today`
    without.
    """

    def __init__(self, suite: str, profile: str, *, has_shop: bool = False) -> None:
        self.profile = profile
        self.suite: TaskSuite[Any] = get_suite(VERSION, suite)
        self.world = World(self.suite)
        self.manifest = effective(suite, profile, has_shop=has_shop)
        self.approvals = Approvals()
        tools = {name: tool for name, tool in self.world.functions().items() if name in self.manifest.tools}
        self.pep = Pep._opened(self.manifest, {}, None, {"tools": tools, "approvals": self.approvals})
        self._numbers = count()

    def attacks(self) -> Iterator[tuple[Any, Any]]:
        """Yield each user task with each goal of an attacker that calls reach."""
        before = self._environment({})
        goals = [task for task in self.suite.injection_tasks.values() if any(calls_of(self.suite.name, task, before))]
        for task in self.suite.user_tasks.values():
            for goal in goals:
                yield task, goal

    def undisturbed(self, task: Any) -> Run:
        """Replay a user task in the current world; the person approves every held call."""
        run = Run()
        before = self._begin(task, {})
        session = self._session(task)
        for call in task.ground_truth(self.world.environment.model_copy(deep=True)):
            run.steps.append(self._step(call, session, grants=True))
        self._end(session)
        run.useful = self.suite._check_task_result(
            task, _said(task), before, self.world.environment, [step.call for step in run.steps]
        )
        return run

    def attacked(self, task: Any, goal: Any, way: str) -> Run:
        """Replay a user task whose agent obeys the attacker after it has read his text; the person denies his calls."""
        run = Run()
        text = injected_text(goal.GOAL, way)
        before = self._begin(task, dict.fromkeys(self._defaults, text))
        if way == "party":
            plant(self.world.environment, text, list(calls_of(self.suite.name, goal, before)))
            before = self.world.environment.model_copy(deep=True)
        session = self._session(task)
        shown = json.dumps(text)[1:-1]
        calls: Iterable[FunctionCall] = task.ground_truth(self.world.environment.model_copy(deep=True))
        for call in calls:
            run.steps.append(self._step(call, session, grants=True))
            if not run.shown and shown in json.dumps(run.steps[-1].last.result):
                run.shown = True
                for wanted in calls_of(self.suite.name, goal, before):
                    run.steps.append(self._step(wanted, session, grants=False))
        self._end(session)
        ran = [step.call for step in run.steps if step.executed]
        run.attained = self.suite._check_task_result(goal, _said(task), before, self.world.environment, ran)
        return run

    def attacked_knowingly(self, task: Any, way: str) -> Run:
        """Replay a user task whose agent obeys an attacker who knows the rules and the prompt; this needs the shop."""
        run, text, name = Run(), seeds(self.suite.name), self.suite.name
        self._begin(task, dict.fromkeys(self._defaults, "" if way == "keys" else text))
        if way != "keys":
            plant(self.world.environment, text, party_calls(name))
        before = self.world.environment.model_copy(deep=True)
        bare = [
            tool.name for tool in self.manifest.tools.values() if tool.result_schema is None and not tool.has_effects
        ]
        self.world.garbler = Garbler(way, text, set(bare) - SHOP.keys())
        session = self._session(task)
        for call in task.ground_truth(self.world.environment.model_copy(deep=True)):
            run.steps.append(self._step(call, session, grants=True))
            if not run.shown and self.world.garbler.shows(call.function, run.steps[-1].last.result):
                run.shown = True
                for mine in wanted(name, way, task.PROMPT, before, call):
                    run.steps.append(self._step(mine, session, grants=False))
        self._end(session)
        self.world.garbler = None
        run.lost = any(loses(step.call) for step in run.steps if step.attacker and step.executed)
        return run

    def writes(self, step: Step) -> bool:
        """Return whether a step changed something."""
        entry = self.manifest.tools[step.call.function]
        return step.executed and entry.has_effects

    def _begin(self, task: Any, injections: dict[str, str]) -> Any:
        self.world.environment = task.init_environment(self._environment(injections))
        return self.world.environment.model_copy(deep=True)

    def _end(self, session: dict[str, Any]) -> None:
        self.pep.end_run(session["run_id"], session)

    def _session(self, task: Any) -> dict[str, Any]:
        run = f"run-{next(self._numbers)}"
        session = {"claims": _CLAIMS, "purpose": "assistance", "run_id": run}
        return session | ({"prompt": [task.PROMPT]} if self.profile in PROFILES[2:] else {})

    def _step(self, call: FunctionCall, session: dict[str, Any], *, grants: bool) -> Step:
        proposal = {"tool": call.function, "arguments": to_jsonable_python(dict(call.args))}
        call_id = f"call-{next(self._numbers)}"
        session = {**session, "idempotency_key": call_id}
        first = last = self.pep.call(proposal, session, tool_call_id=call_id)
        if first.approval is not None and first.verdict is Verdict.STEP_UP:
            if grants:
                reach = "once" if first.approval.lasting is None else "until"
                self.approvals.grant(first.approval.id, _PERSON, reach=reach)
                last = self.pep.call(proposal, session, tool_call_id=call_id)
            else:
                self.approvals.deny(first.approval.id, _PERSON)
        ran = last.executed and last.outcome.failure is None
        return Step(call, first, last, first.verdict is Verdict.STEP_UP, ran, attacker=not grants)

    @cached_property
    def _defaults(self) -> dict[str, str]:
        return dict(self.suite.get_injection_vector_defaults())

    @cached_property
    def _template(self) -> Any:
        text = read_suite_file(self.suite.name, "environment.yaml", self.suite.data_path)
        return yaml.safe_load(text.format(**{name: f"@@{name}@@" for name in self._defaults}))

    def _environment(self, injections: dict[str, str]) -> Any:
        """Return a new world, like `load_and_inject_default_environment`, which would read the file each time."""
        return self.suite.environment_type.model_validate(_filled(self._template, {**self._defaults, **injections}))


def effective(suite: str, profile: str, *, has_shop: bool = False) -> EffectiveManifest:
    """Return the manifest of a suite under a profile."""
    manifest: dict[str, Any] = json.loads((_EXAMPLES / f"{suite}.json").read_text(encoding="utf-8"))
    path = _EXAMPLES / f"{suite}.governance.yaml"
    governance: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if has_shop:
        with_shop(manifest, governance)
    if profile in PROFILES[2:]:
        governance["flow"] = {"profile": profile}
    else:
        del governance["flow"]
        for action, rules in governance["actions"].items():
            for label in _LABELS & rules.keys():
                del rules[label]
            if profile == "today" and action in _HEAVY:
                rules |= {"effect_class": "commit-high", "idempotency": {"required": True}}
    texts = [json.dumps(document).encode() for document in (manifest, governance)]
    return load_effective(_EXAMPLES / f"{suite}.json", path, manifest_text=texts[0], governance_text=texts[1])


def _filled(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {_filled(key, texts): _filled(part, texts) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, texts) for part in value]
    if isinstance(value, str) and "@@" in value:
        for name, text in texts.items():
            value = value.replace(f"@@{name}@@", text)
    return value


def _said(task: Any) -> list[dict[str, str]]:
    return [{"type": "text", "content": task.GROUND_TRUTH_OUTPUT}]
