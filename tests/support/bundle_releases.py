"""Bundles to release in tests: the payments example's policy under any release number and settings, signed or not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.workbench.bundles.sign import SigningKey, generate_key, load_signing_key, sign_bundle
from tests.support import payments

if TYPE_CHECKING:
    from pdp.engine.bundle.signature import Algorithm


def key(name: str = "one", algorithm: Algorithm = "ES256") -> SigningKey:
    """A key of this test run by its name."""
    return _key(name, algorithm)


@cache
def _key(name: str, algorithm: Algorithm) -> SigningKey:
    with TemporaryDirectory() as folder:
        generate_key(Path(folder, name), algorithm)
        return load_signing_key(Path(folder, name))


def key_file(folder: Path, name: str = "one") -> Path:
    """That key as a file for its owner only, and its public half beside it."""
    file = folder / name
    file.write_bytes(key(name).jwk.as_pem(private=True))
    file.chmod(0o600)
    file.with_name(f"{name}.pub").write_text(key(name).public.pem)
    return file


def bundle(release: int, *, signed: str | None = "one", **settings: Any) -> bytes:
    """The payments bundle with a release number and settings of its own, signed with the key of that name.

    The same arguments give the same bytes: ES256 itself signs otherwise each time.
    """
    return _bundle(release, signed, tuple(settings.items()))


@cache
def _bundle(release: int, signed: str | None, items: tuple[tuple[str, Any], ...]) -> bytes:
    settings = dict(items)
    packed = pack_bundle(release=release, wasm=_example().wasm, data=_data(settings), modules=_example().modules)
    return packed if signed is None else sign_bundle(packed, key(signed))


def tiny(release: int, *, signed: str | None = None, **settings: Any) -> bytes:
    """A bundle that no engine could decide by, for those who only keep it: ten kilobytes. Bytes as of `bundle`."""
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
def _example() -> Any:
    return read_bundle(payments.BUNDLE)
