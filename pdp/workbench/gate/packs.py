"""Run contract test packs: scenario files that a tool's `eval_pack` names. A changed tool requires a pack.

Source: tool pattern library, 9.1, "eval-gated": golden inputs, side-effect probes and idempotency probes. A pack is a
scenario file, `packs/NAME.yaml`. Golden inputs are golden scenarios in which the tool runs and returns the expected
result. A side-effect probe runs the tool in a recorded `world` and expects what the tool `touched`; the harness also
checks that the effect class allows it. An idempotency probe makes the same call twice. The second call must not run the
tool, and must return the result of the first call.
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
    """Return the faults of a tool's pack in `folder`. The pack has to use one of the manifests in `digests`."""
    whose = f"{tool.name} {tool.version or 'without a version'}"
    if tool.eval_pack is None:
        return [f"{whose} changed and has no `eval_pack`: add one, and write packs/NAME.yaml"]
    file = _file(tool.eval_pack, folder)
    if file is None:
        return [f"{whose}: no pack {tool.eval_pack} in {folder}"]
    try:
        suite = load_suite(file)
        if suite.manifest.digest not in digests:
            return [f"{file}: uses another manifest ({suite.manifest.version}, {suite.manifest.digest})"]
        results = Runner(suite, engine).run_all()
    except EngineTimeoutError:
        raise
    except PdpError as error:
        return [f"{file}: cannot be run: {error.message.splitlines()[0]}"]
    failed = [_failure(result) for result in results if not result.passed]
    return [*failed, *(f"{file}: no {missing} of {whose}" for missing in _missing(suite, tool))]


def _failure(result: ScenarioResult) -> str:
    items = (item for step in result.steps for item in step.mismatches)
    why = result.error or next((f"{item.key}: {item.actual}, expected: {item.expected}" for item in items), "")
    return f"{result.place.file}:{result.place.line}: {result.name}: fails: {why}"


def _file(name: str, folder: Path) -> Path | None:
    # The name of a pack must not contain a folder, because a path could lead out of the packs' folder.
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


# If the tools file has no function for a tool, a function that returns null is used.
def _runs(step: Step) -> bool:
    is_itself = "returns" not in step.model_fields_set
    return is_itself and any(expect.executed and expect.result is not None for expect in step.expectations)


# Only a pure tool may have an empty `touched`. A tool with effects must show a write. A tool of type `cli` may show the
# program that it starts instead, because the program's writes are not recorded.
def _probes(step: Step, tool: Tool) -> bool:
    expect, reads = step.expectations[0], tool.effect_class in (None, *READ_CLASSES)
    if expect.touched is None or expect.executed is not True or "returns" in step.model_fields_set:
        return False
    shows = ("write ", "program ") if tool.type == "cli" else "write "
    return tool.effect_class is EffectClass.PURE or any(reads or touch.startswith(shows) for touch in expect.touched)


# Only a replay has a result although the tool did not run. A denied call has no result.
def _replays(step: Step) -> bool:
    return any(expect.executed is False and expect.result is not None for expect in step.expectations)


def _repeats(scenario: Scenario, tool: Tool) -> bool:
    calls = _calls(scenario, tool)
    return any(
        first.propose == second.propose and _replays(second) and first.expectations[0].executed is True
        for at, first in enumerate(calls)
        for second in calls[at + 1 :]
    )
