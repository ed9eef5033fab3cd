"""The enforcement point itself as a target: guarded functions of this process."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from pdp import Pep, ToolDeniedError, ToolFailedError
from pdp.engine.opa.engine import SidecarEngine
from pdp.flow.preview import Visibility
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.support import until


class LocalClient:
    """Calls guarded functions; a tool without one is asked of the enforcement point by its name."""

    def __init__(self, pep: Pep, world: World) -> None:
        self.pep, self.world = pep, world
        self.functions = {name: pep.tool(function) for name, function in functions(world).items()}

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        try:
            if tool not in self.functions:
                evaluation = self.pep.call({"tool": tool, "arguments": arguments}, self.world.session)
                return Observed(evaluation.answer.text, evaluation.answer.is_error)
            with self.pep.using(self.world.session):
                function = self.functions[tool]
                return Observed(function(*arguments.values()) if by_position else function(**arguments), is_error=False)
        except (ToolDeniedError, ToolFailedError) as error:
            approval = error.evaluation.approval
            return Observed(str(error), error.evaluation.answer.is_error, approval.id if approval else None)
        except RuntimeError as error:
            return Observed(str(error), is_error=True)

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        async def call_and_give_up() -> None:
            call = self.pep.acall({"tool": tool, "arguments": arguments}, self.world.session)
            task = asyncio.create_task(call)
            await asyncio.to_thread(until, lambda: self.world.engine.asked.is_set() or task.done())
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(call_and_give_up())

    def approve(self, held: str) -> None:
        assert self.pep.approvals is not None
        self.pep.approvals.grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        visible = self.pep.visible_tools(self.world.session)
        return [name for name, visibility in visible.items() if visibility is not Visibility.NEVER]


class RaisingPep(Pep):
    """An enforcement point with a fault of its own."""

    def call(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a fault of the enforcement point")

    acall = abegin = decide = adecide = visible_tools = avisible_tools = call


def fail_at(event: Any) -> None:
    """Be an observer of somebody else's, with a fault."""
    raise RuntimeError(f"a fault of an observer: {event}")


@contextmanager
def opened_pep(world: World) -> Iterator[Pep]:
    """An enforcement point of this process on the world's files, with its setting."""
    kind, file = RaisingPep if world.setting == "raises" else Pep, world.folder / "pdp.yaml"
    observers = [fail_at] if world.setting == "beside" else []
    # Tests are patient with engines, and this one is slow in earnest.
    with (
        SidecarEngine(world.engine.url, timeout=1) as engine,
        kind.from_project(file, engine=engine, observers=observers) as pep,
    ):
        yield pep


class LocalTarget:
    """`Pep` in this process."""

    name = "Pep"
    versions: Mapping[str, str] = {}
    impossible: Mapping[str, str] = {}
    spelling = "{}"

    @contextmanager
    def open(self, world: World) -> Iterator[LocalClient]:
        with opened_pep(world) as pep:
            yield LocalClient(pep, world)


def functions(world: World) -> dict[str, Any]:
    """The functions of the world's tools, with its parameters."""

    def run(tool: str, given: Mapping[str, Any]) -> str:
        return run_body(world.record, tool, {name: value for name, value in given.items() if value is not None})

    def read_note(note: str, page: float | None = None, filter: Any = None) -> str:  # noqa: A002 - the tool's argument
        return run("read_note", {"note": note, "page": page, "filter": filter})

    def pay_bill(payee: str, amount: float | None = None) -> str:
        return run("pay_bill", {"payee": payee, "amount": amount})

    def wipe_disk(disk: str) -> str:
        return run("wipe_disk", {"disk": disk})

    def fetch_page(url: str, limit: float | None = None) -> str:
        return run("fetch_page", {"url": url, "limit": limit})

    def ping_host(host: str) -> str:
        return run("ping_host", {"host": host})

    def post_note(note: str) -> str:
        return run("post_note", {"note": note})

    made = [read_note, pay_bill, wipe_disk, fetch_page, ping_host, post_note]
    return {function.__name__: function for function in made}
