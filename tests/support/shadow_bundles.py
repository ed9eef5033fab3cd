"""Bundles that really decide otherwise than the payments example's: without its own concerns, or asking for them."""

from __future__ import annotations

from functools import cache

from pdp.engine.bundle.file import Bundle, baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.pep import Pep
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.running.runner import Runner
from tests.support import payments


def lax_file(release: int) -> bytes:
    """The example's manifest under the baseline alone: nobody denies for sanctions or beneficiary any longer."""
    ours, baseline = read_bundle(payments.BUNDLE), read_bundle(baseline_bundle_path())
    data = {**ours.data, "config": baseline.data["config"]}
    return pack_bundle(release=release, wasm=baseline.wasm, data=data, modules=baseline.modules)


def strict_file(release: int) -> bytes:
    """The same, where the example's own concerns are still asked for: everything is DENY."""
    ours, baseline = read_bundle(payments.BUNDLE), read_bundle(baseline_bundle_path())
    return pack_bundle(release=release, wasm=baseline.wasm, data=ours.data, modules=baseline.modules)


def usual_file(release: int) -> bytes:
    """The example's own bundle under another release number."""
    ours = read_bundle(payments.BUNDLE)
    return pack_bundle(release=release, wasm=ours.wasm, data=ours.data, modules=ours.modules)


@cache
def lax() -> Bundle:
    return read_bundle(lax_file(2))


@cache
def strict() -> Bundle:
    return read_bundle(strict_file(3))


class _Asked(EmbeddedEngine):
    """Keeps every body that it is asked to decide."""

    def __init__(self) -> None:
        super().__init__(read_bundle(payments.BUNDLE))
        self.bodies: list[bytes] = []
        self.plans: list[bytes] = []

    def evaluate(self, body: bytes) -> bytes:
        self.bodies.append(body)
        return super().evaluate(body)

    def evaluate_plan(self, body: bytes) -> bytes:
        self.plans.append(body)
        return super().evaluate_plan(body)


@cache
def scenario_requests() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """All requests of the payments scenarios, and all plans."""
    suite = load_suite(payments.EXAMPLE / "scenarios.yaml")
    with _Asked() as engine:
        assert all(result.passed for result in Runner(suite, engine).run_all())
    plan = canonical({"steps": [{"tool": "initiate_wire"}], "context": {"purpose": None}})
    return tuple(engine.bodies), (*engine.plans, plan)


@cache
def wire_body(amount: float = 20000, sanctions: str = "clear", request_id: str = "req-1") -> bytes:
    """The request of a wire. 20000: ALLOW; 47500: STEP_UP; sanctions other than `clear`: DENY, and not by `lax`."""
    session = payments.session(
        facts={"beneficiary_id": "bene-acme-441", "sanctions_status": sanctions}, request_id=request_id
    )
    with payments.engine() as engine:
        asked = Pep(payments.effective(), engine).decide(payments.wire(amount=amount), session).request
    return canonical(asked)
