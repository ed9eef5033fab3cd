"""The target `Pep`: guarded functions in the process of the test."""

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
    """Calls guarded functions. For a tool without a function, the client uses `Pep.call` instead."""

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
        async def call_and_cancel() -> None:
            call = self.pep.acall({"tool": tool, "arguments": arguments}, self.world.session)
            task = asyncio.create_task(call)
            await asyncio.to_thread(until, lambda: self.world.engine.asked.is_set() or task.done())
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(call_and_cancel())

    def approve(self, held: str) -> None:
        assert self.pep.approvals is not None
        self.pep.approvals.grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        visible = self.pep.visible_tools(self.world.session)
        return [name for name, visibility in visible.items() if visibility is not Visibility.NEVER]


class RaisingPep(Pep):
    """An enforcement point that fails with an exception."""

    def call(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a fault of the enforcement point")

    acall = abegin = decide = adecide = visible_tools = avisible_tools = call


def fail_at(event: Any) -> None:
    """Raise an exception, as a faulty event observer of an application does."""
    raise RuntimeError(f"a fault of an observer: {event}")


@contextmanager
def opened_pep(world: World) -> Iterator[Pep]:
    """Open an enforcement point that uses the files of the world and has the fault that the case needs."""
    kind, file = RaisingPep if world.setting == "raises" else Pep, world.folder / "pdp.yaml"
    observers = [fail_at] if world.setting == "beside" else []
    # The engine gets a short timeout, because a case tests that a slow engine times out.
    with (
        SidecarEngine(world.engine.url, timeout=1) as engine,
        kind.from_project(file, engine=engine, observers=observers) as pep,
    ):
        yield pep


class LocalTarget:
    name = "Pep"
    versions: Mapping[str, str] = {}
    impossible: Mapping[str, str] = {}
    spelling = "{}"

    @contextmanager
    def open(self, world: World) -> Iterator[LocalClient]:
        with opened_pep(world) as pep:
            yield LocalClient(pep, world)


def functions(world: World) -> dict[str, Any]:
    """Return a function with the right parameters for each tool of the world."""

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
