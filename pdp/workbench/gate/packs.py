"""Contract test packs: what a tool's `eval_pack` names, run when its version changed.

Source: tool pattern library, 9.1, "eval-gated": golden inputs, side-effect probes and idempotency probes. A pack is a
scenario file, `packs/NAME.yaml`. Golden inputs are its golden scenarios in which the tool itself runs, and gives the
result that is stated. A side-effect probe runs the tool against a recorded `world` and states what it `touched`; the
harness compares that with the tool's effect class. An idempotency probe is a scenario that makes one call twice and
expects that the second one does not run, and has the first one's result.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from pdp.engine.protocol import Engine
from pdp.errors import EngineTimeoutError, PdpError
from pdp.manifest.fields import READ_CLASSES, EffectClass
from pdp.manifest.model import Tool
from pdp.workbench.scenarios.files.scenario import Scenario, Step, proposed_tool
from pdp.workbench.scenarios.files.suite import Suite, load_suite
from pdp.workbench.scenarios.results import ScenarioResult
from pdp.workbench.scenarios.running.runner import Runner

_ENDINGS: Final = (".yaml", ".yml", ".json")


def pack_faults(tool: Tool, digests: Collection[str], folder: Path, engine: Engine) -> list[str]:
    """Return what is wrong with the pack of a tool in a folder; empty: it is there, it is whole, and it passes.

    It has to be about one of the manifests that have just this entry, which are those of `digests`.
    """
    whose = f"{tool.name} {tool.version or 'without a version'}"
    if tool.eval_pack is None:
        return [f"{whose} changed and names no `eval_pack`: state one, and write packs/NAME.yaml"]
    file = _file(tool.eval_pack, folder)
    if file is None:
        return [f"{whose}: the pack {tool.eval_pack} is not there; looked in {folder}"]
    try:
        suite = load_suite(file)
        if suite.manifest.digest not in digests:
            return [f"{file}: about another manifest ({suite.manifest.version}, {suite.manifest.digest})"]
        results = Runner(suite, engine).run_all()
    except EngineTimeoutError:
        raise
    except PdpError as error:
        return [f"{file}: cannot be run: {error.message.splitlines()[0]}"]
    failed = [_failure(result) for result in results if not result.passed]
    return [*failed, *(f"{file}: no {missing} of {whose}" for missing in _missing(suite, tool))]


def _failure(result: ScenarioResult) -> str:
    found = [f"{one.key}: {one.actual}, expected: {one.expected}" for step in result.steps for one in step.mismatches]
    why = result.error or next(iter(found), "")
    return f"{result.place.file}:{result.place.line}: {result.name}: fails: {why}"


def _file(name: str, folder: Path) -> Path | None:
    # A name, not a path: what leads out of the folder is not looked for.
    if "/" in name or "\\" in name or name.startswith("."):
        return None
    return next((file for ending in _ENDINGS if (file := folder / f"{name}{ending}").is_file()), None)


def _missing(suite: Suite, tool: Tool) -> Iterator[str]:
    if not any(scenario.golden and any(map(_runs, _calls(scenario, tool))) for scenario in suite.scenarios):
        yield "golden input (a golden call with `executed: true` and its `result`, and without `returns`)"
    worlds = [scenario for scenario in suite.scenarios if scenario.world is not None]
    if not any(_probes(step, tool) for scenario in worlds for step in _calls(scenario, tool)):
        yield "side-effect probe (a call in a `world`, with `executed: true` and what it `touched`, such as its writes)"
    if tool.idempotency.required and not any(_repeats(scenario, tool) for scenario in suite.scenarios):
        yield "idempotency probe (one call twice, the second with `executed: false` and the `result` of the first)"


def _calls(scenario: Scenario, tool: Tool) -> list[Step]:
    return [step for step in scenario.steps if proposed_tool(step.propose) == tool.name]


# A stand-in for a tool that is not there gives null.
def _runs(step: Step) -> bool:
    is_itself = "returns" not in step.model_fields_set
    return is_itself and any(expect.executed and expect.result is not None for expect in step.expectations)


# Only a pure tool may touch nothing; a tool of a class that changes something has to show what it writes, and a tool of
# type `cli` that its program starts: what that does is not seen.
def _probes(step: Step, tool: Tool) -> bool:
    expect, reads = step.expectations[0], tool.effect_class in (None, *READ_CLASSES)
    if expect.touched is None or expect.executed is not True or "returns" in step.model_fields_set:
        return False
    shows = ("write ", "program ") if tool.type == "cli" else "write "
    return tool.effect_class is EffectClass.PURE or any(reads or touch.startswith(shows) for touch in expect.touched)


# A call that is denied does not run either, and has no result.
def _replays(step: Step) -> bool:
    return any(expect.executed is False and expect.result is not None for expect in step.expectations)


def _repeats(scenario: Scenario, tool: Tool) -> bool:
    calls = _calls(scenario, tool)
    return any(
        one.propose == other.propose and _replays(other) and one.expectations[0].executed is True
        for at, one in enumerate(calls)
        for other in calls[at + 1 :]
    )
