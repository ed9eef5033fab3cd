"""An agent with the workstation's tools: a registry, an enforcement point and a loop, with a scripted model.

    python examples/workstation/agent.py [--folder FOLDER] [--bundle FILE]

Replace the scripted model with a function that calls your model.
"""

import argparse
import signal
import sys
from pathlib import Path

from pdp import PdpError, Pep, Registry
from pdp.loop import AgentLoop, ModelRequest, Role, ToolCall, Turn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from tools import FILES, Workstation  # noqa: E402 - imported from this folder

CLAIMS = {"sub": "ann", "emts": {"files.read": True}}


def model(request: ModelRequest) -> Turn:
    """Return the next turn of the script. The last turn states the number of results."""
    turn = sum(message.role is Role.ASSISTANT for message in request.messages)
    script = (
        (
            ToolCall("call-1", "grep_files", {"pattern": "dice", "paths": ["notes.txt"]}),
            ToolCall("call-2", "roll_dice", {"count": 2, "sides": 6}),
        ),
        (
            ToolCall("call-3", "read_file", {"path": "inventory.txt"}),
            ToolCall("call-4", "read_file", {"path": "../../../pyproject.toml"}),
            ToolCall("call-5", "delete_file", {"path": "inventory.txt"}),
        ),
    )
    if turn < len(script):
        return Turn(calls=script[turn])
    seen = [message for message in request.messages if message.role is Role.TOOL]
    failed = sum(message.is_error for message in seen)
    return Turn(f"{len(seen) - failed} results, {failed} errors")


def run() -> None:
    """Run the agent. Raise `PdpError` if a given file is invalid."""
    options = argparse.ArgumentParser(description="An agent with the workstation's tools and a scripted model.")
    options.add_argument("--folder", type=Path, default=FILES, help="what may be read")
    options.add_argument("--bundle", help="policies built with `pdp bundle build`; the baseline when absent")
    chosen = options.parse_args()

    workstation = Workstation(chosen.folder, seed=7)
    registry = Registry.from_files(
        HERE / "manifest.yaml", governance=HERE / "governance.yaml", capabilities=["filesystem"]
    )
    registry.bind("roll_dice", workstation.roll_dice)
    registry.bind("read_file", workstation.read_file, available=workstation.folder_is_there)
    for tool in registry.check_availability():
        print(f"{tool.name}: {'available' if tool.available else tool.reason}")  # noqa: T201

    pep = Pep.from_registry(registry, bundle=chosen.bundle)
    agent = AgentLoop(pep, model, {"claims": CLAIMS}, max_tool_iterations=5)
    finished = agent.run("What do the notes say of dice? Roll them.")
    for message in finished.messages:
        if message.role is Role.TOOL:
            print(f"{message.tool_call_id} {message.tool}: {message.content!r}")  # noqa: T201
    print(finished.text)  # noqa: T201


def main() -> int:
    """Run the agent and return the exit code. It is 2 if the agent cannot start."""
    if hasattr(signal, "SIGPIPE"):
        # If the reader closes the pipe, such as `head`, end silently like other programs.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        run()
    except PdpError as error:
        hint = f"\n    hint: {error.hint}" if error.hint else ""
        print(f"error: {error.message}{hint}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
