"""Bundles of the payments policy with any release number, signed or not, and bundles that decide differently.

The bundles of `bundle` and `tiny` differ only in settings and signature. The bundles of `lax_file` and `strict_file`
decide differently.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pdp.engine.bundle.file import Bundle, baseline_bundle_path, pack_bundle, read_bundle
from pdp.engine.protocol import DECISION, PLAN
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.pep import Pep
from pdp.workbench.bundles.sign import SigningKey, generate_key, load_signing_key, sign_bundle
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.running.runner import Runner
from tests.support import payments


def key(name: str = "one") -> SigningKey:
    """Return the signing key with this name. During a test run, the same name always gives the same key."""
    return _key(name)


@cache
def _key(name: str) -> SigningKey:
    with TemporaryDirectory() as folder:
        generate_key(Path(folder, name))
        return load_signing_key(Path(folder, name))


def key_file(folder: Path, name: str = "one") -> Path:
    """Write the private key to a file, and the public key to a file next to it. Return the first file."""
    file = folder / name
    file.write_bytes(key(name).jwk.as_pem(private=True))
    file.chmod(0o600)
    file.with_name(f"{name}.pub").write_text(key(name).public.pem)
    return file


def bundle(release: int, *, signed: str | None = "one", **settings: Any) -> bytes:
    """Return the payments bundle with this release number and these settings, signed with the named key.

    The bytes are cached, because ES256 signs the same content differently each time.
    """
    return _bundle(release, signed, tuple(settings.items()))


@cache
def _bundle(release: int, signed: str | None, items: tuple[tuple[str, Any], ...]) -> bytes:
    settings = dict(items)
    packed = pack_bundle(release=release, wasm=_example().wasm, data=_data(settings), modules=_example().modules)
    return packed if signed is None else sign_bundle(packed, key(signed))


def tiny(release: int, *, signed: str | None = None, **settings: Any) -> bytes:
    """Return a cached bundle of ten kilobytes that no engine can use, for tests that only store bundles."""
    return _tiny(release, signed, tuple(settings.items()))


@cache
def _tiny(release: int, signed: str | None, items: tuple[tuple[str, Any], ...]) -> bytes:
    settings = dict(items)
    packed = pack_bundle(
        release=release,
        wasm=b"\0asm\x01\0\0\0",
        data={"settings": settings},
        modules={"authz/d.rego": "package authz\n"},
    )
    return packed if signed is None else sign_bundle(packed, key(signed))


def _data(settings: dict[str, Any]) -> dict[str, Any]:
    return {**_example().data, "settings": settings}


@cache
def _example() -> Bundle:
    return read_bundle(payments.BUNDLE)


# Bundles that decide differently from the example's bundle, and requests that show the difference.


def lax_file(release: int) -> bytes:
    """Return a bundle without the example's own concerns. This bundle allows sanctioned beneficiaries."""
    ours, baseline = _example(), read_bundle(baseline_bundle_path())
    data = {**ours.data, "config": baseline.data["config"]}
    return pack_bundle(release=release, wasm=baseline.wasm, data=data, modules=baseline.modules)


def strict_file(release: int) -> bytes:
    """Return a bundle without the concerns that the example requires. Every decision of this bundle is a DENY."""
    ours, baseline = _example(), read_bundle(baseline_bundle_path())
    return pack_bundle(release=release, wasm=baseline.wasm, data=ours.data, modules=baseline.modules)


def usual_file(release: int) -> bytes:
    """Return the bundle of the example with another release number."""
    ours = _example()
    return pack_bundle(release=release, wasm=ours.wasm, data=ours.data, modules=ours.modules)


@cache
def lax() -> Bundle:
    return read_bundle(lax_file(2))


@cache
def strict() -> Bundle:
    return read_bundle(strict_file(3))


class _Asked(EmbeddedEngine):
    """An engine that records all requests and plans on which it decides."""

    def __init__(self) -> None:
        super().__init__(read_bundle(payments.BUNDLE))
        self.bodies: list[bytes] = []
        self.plans: list[bytes] = []

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        (self.plans if document == PLAN else self.bodies).append(body)
        return super().evaluate(body, document)


@cache
def scenario_requests() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the requests and the plans of all payments scenarios."""
    suite = load_suite(payments.EXAMPLE / "scenarios.yaml")
    with _Asked() as engine:
        assert all(result.passed for result in Runner(suite, engine).run_all())
    plan = canonical({"steps": [{"tool": "initiate_wire"}], "context": {"purpose": None}})
    return tuple(engine.bodies), (*engine.plans, plan)


@cache
def wire_body(amount: float = 20000, sanctions: str = "clear", request_id: str = "req-1") -> bytes:
    """Return the request of a wire. An amount of 20000 is an ALLOW, and 47500 is a STEP_UP.

    If `sanctions` is not `clear`, the decision is a DENY, except with the bundle of `lax_file`.
    """
    session = payments.session(
        facts={"beneficiary_id": "bene-acme-441", "sanctions_status": sanctions}, request_id=request_id
    )
    with payments.engine() as engine:
        asked = Pep(payments.effective(), engine).decide(payments.wire(amount=amount), session).request
    return canonical(asked)
