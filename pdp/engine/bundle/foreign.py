"""Bundles of `opa build -t wasm`, with any policy: for questions that are not tool calls."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Final

from pdp.engine.bundle.file import Bundle, gunzip, read_packed
from pdp.errors import BundleError
from pdp.json import JsonValueError, digest, parse_json

if TYPE_CHECKING:
    from pathlib import Path

_BUILD: Final = "build it with `opa build -t wasm -e ENTRYPOINT -o FILE`"


def read_foreign_bundle(path: Path) -> Bundle:
    """Return module and data of a bundle file of OPA's; its revision is the file's digest, and it has no release.

    BundleError: not such a file.
    """
    packed, files = read_packed(path), {"data.json": b"{}"}
    try:
        unpacked = gunzip(packed)
    except BundleError as error:
        raise BundleError(f"{path}: {error.message}", hint=_BUILD) from None
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                files[member.name.removeprefix("/")] = b"" if content is None else content.read()
        data = parse_json(files["data.json"])
        wasm = files["policy.wasm"]
    except (tarfile.TarError, JsonValueError, KeyError, EOFError) as error:
        raise BundleError(f"{path}: not a bundle with policy.wasm and data: {error}", hint=_BUILD) from error
    if not isinstance(data, dict):
        raise BundleError(f"{path}: data.json: not an object", hint=_BUILD)
    return Bundle(digest(packed), 0, wasm, data, {}, len(packed), digest(packed))
