"""`pdp bundle keygen`, `sign` and `verify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pdp.cli import Exit
from pdp.cli.bundle_keys import given_signing_key, needed_public_keys
from pdp.cli.output import print_json, tell
from pdp.engine.bundle.file import read_bundle, read_packed
from pdp.errors import BundleError, UsageError
from pdp.workbench.bundles.build import write_bundle
from pdp.workbench.bundles.keys import PUBLIC_SUFFIX, SIGNING_VARIABLE, generate_key
from pdp.workbench.bundles.sign import sign_bundle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.bundle.keys import Algorithm


def keygen(out: Path, *, algorithm: Algorithm, as_json: bool) -> int:
    """Make a pair of keys and say where they are.

    Raises:
        UsageError: a file is there already, or cannot be written.
    """
    public = generate_key(out, algorithm)
    private_file, public_file = _shown(out), _shown(out.with_name(out.name + PUBLIC_SUFFIX))
    if as_json:
        print_json({"private": private_file, "public": public_file, "key_id": public.id, "algorithm": algorithm})
    else:
        tell(f"{private_file}: the private key, for those who release; nobody else may read it")
        tell(f"{public_file}: the public key, for engines and for OPA")
        tell(f"  key id     {public.id}")
        tell(f"  algorithm  {algorithm}")
    return Exit.OK


def sign(file: Path, *, output: Path | None, key: Path | None, as_json: bool) -> int:
    """Sign a bundle, in place or into another file.

    Raises:
        UsageError: no key, one that cannot be used, or a file that cannot be written.
        BundleError: not a bundle.
    """
    signing_key = given_signing_key(key)
    if signing_key is None:
        raise UsageError(
            "no private key to sign with", hint=f"name one with --key, or give it in the variable {SIGNING_VARIABLE}"
        )
    packed = read_packed(file)
    try:
        signed = sign_bundle(packed, signing_key)
    except BundleError as error:
        raise type(error)(f"{file}: {error.message.removeprefix('bundle: ')}", hint=error.hint) from error
    out = output or file
    write_bundle(out, signed)
    _tell_signed(read_bundle(signed, keys=[signing_key.public]), _shown(out), as_json=as_json)
    return Exit.OK


def verify(file: Path, *, keys: Sequence[Path], least_release: int, as_json: bool) -> int:
    """Verify a bundle as an engine does that has these keys.

    Raises:
        UsageError: no key, or one that cannot be used.
        BundleError: unsigned, signed by somebody else, changed, older than `least_release` or no bundle.
    """
    bundle = read_bundle(file, keys=needed_public_keys(keys))
    if bundle.release < least_release:
        raise BundleError(
            f"{file}: release {bundle.release} is older than release {least_release}", hint="take the newest one"
        )
    _tell_signed(bundle, _shown(file), as_json=as_json)
    return Exit.OK


def _tell_signed(bundle: Bundle, file: str, *, as_json: bool) -> None:
    signature = bundle.signature
    fields: dict[str, Any] = {
        "file": file, "revision": bundle.revision, "release": bundle.release, "digest": bundle.digest,
        "key_id": None if signature is None else signature.key_id,
        "algorithm": None if signature is None else signature.algorithm,
    }  # fmt: skip
    if as_json:
        print_json(fields)
        return
    tell(f"{file}: release {bundle.release}, signed")
    for name in ("revision", "digest", "key_id", "algorithm"):
        tell(f"  {name.replace('_', ' '):9}  {fields[name]}")


def _shown(path: Path) -> str:
    # A name that is no text, such as a lone byte 0xff, cannot stand in JSON.
    return os.fsencode(path).decode(errors="replace")
