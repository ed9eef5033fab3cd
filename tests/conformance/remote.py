"""The target `Pep.remote`, with a service in another process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

from pdp import Client, Pep
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.conformance.local import LocalClient
from tests.support import until
from tests.support.service import RunningService, running_service


class RemoteClient(LocalClient):
    def __init__(self, pep: Any, world: World, service: RunningService) -> None:
        super().__init__(pep, world)
        self.service = service

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        if self.world.setting == "beside":
            raise NotImplementedError
        if self.world.setting == "raises":
            self.world.engine.become("slow")
            Thread(target=self._kill).start()
        return super().call(tool, arguments, call_id=call_id, by_position=by_position)

    def approve(self, held: str) -> None:
        with Client(self.service.url, token=self.service.token(["approve"], self.world.approver)) as client:
            client.approvals.grant(held)

    def _kill(self) -> None:
        if until(self.world.engine.asked.is_set):
            self.service.process.kill()


class RemoteTarget:
    name = "Pep.remote"
    versions: Mapping[str, str] = {}
    impossible: Mapping[str, str] = {"handler registered beside ours": "`Pep.remote` has no other handlers."}
    spelling = "{}"

    @contextmanager
    def open(self, world: World) -> Iterator[RemoteClient]:
        folder = world.folder / "service"
        folder.mkdir()
        with running_service(folder, tenant={"project": str(world.folder / "pdp.yaml")}) as service:
            token = service.token(["propose", "assert"], world.session["claims"])
            with Pep.remote(service.url, token=token) as pep:
                yield RemoteClient(pep, world, service)
