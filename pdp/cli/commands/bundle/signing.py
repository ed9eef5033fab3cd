"""`pdp bundle keygen`, `sign` and `verify`; and keys as commands are given them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pdp.cli.options import AsJson, file_argument, file_option
from pdp.cli.output import print_json, tell
from pdp.engine.bundle.file import read_bundle, read_packed
from pdp.engine.bundle.signature import ALGORITHM, KEYS_VARIABLE, VerificationKey, load_public_keys, public_keys
from pdp.errors import BundleError, UsageError
from pdp.workbench.bundles.build import write_bundle
from pdp.workbench.bundles.sign import (
    PUBLIC_SUFFIX,
    SIGNING_VARIABLE,
    SigningKey,
    generate_key,
    load_signing_key,
    sign_bundle,
    signing_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.engine.bundle.file import Bundle

BundleFile = Annotated[Path, file_argument("FILE", help="The bundle file.")]
PublicKeys = Annotated[
    list[Path] | None,
    file_option(
        "--key",
        help="A public key, PEM; else those in PDP_VERIFICATION_KEYS. May be repeated: one of them must have signed.",
    ),
]
PrivateKey = Annotated[Path | None, file_option("--key", help="The private key, PEM; else the one in PDP_SIGNING_KEY.")]


def keygen(
    output: Annotated[Path, file_option("--output", "-o", help="The private key; its public half goes to FILE.pub.")],
    as_json: AsJson = False,
) -> None:
    """Make a pair of keys to sign bundles with. Nothing is overwritten."""
    public = generate_key(output)
    private_file, public_file = shown(output), shown(output.with_name(output.name + PUBLIC_SUFFIX))
    if as_json:
        print_json({"private": private_file, "public": public_file, "key_id": public.id, "algorithm": ALGORITHM})
        return
    tell(f"{private_file}: the private key, for those who release; nobody else may read it")
    tell(f"{public_file}: the public key, for engines and for OPA")
    tell(f"  key id     {public.id}")
    tell(f"  algorithm  {ALGORITHM}")


def sign(
    file: BundleFile,
    output: Annotated[Path | None, file_option("--output", "-o", help="The signed bundle; in place if absent.")] = None,
    key: PrivateKey = None,
    as_json: AsJson = False,
) -> None:
    """Sign a bundle in OPA's format; `opa run --verification-key` accepts it."""
    private = given_signing_key(key)
    if private is None:
        raise UsageError(
            "no private key to sign with", hint=f"name one with --key, or give it in the variable {SIGNING_VARIABLE}"
        )
    packed = read_packed(file)
    try:
        signed = sign_bundle(packed, private)
    except BundleError as error:
        raise BundleError(f"{file}: {error.message.removeprefix('bundle: ')}", hint=error.hint) from error
    write_bundle(output or file, signed)
    _show_signed(read_bundle(signed, keys=[private.public]), output or file, as_json=as_json)


def verify(
    file: BundleFile,
    key: PublicKeys = None,
    as_json: AsJson = False,
) -> None:
    """Verify a bundle as engines do. Exit code: 0 good, 2 unsigned, wrongly signed, changed or no bundle."""
    bundle = read_bundle(file, keys=needed_public_keys(key or []))
    _show_signed(bundle, file, as_json=as_json)


def given_signing_key(path: Path | None) -> SigningKey | None:
    """Return the private key in a file, or in PDP_SIGNING_KEY when no file is named; None when there is neither.

    Raises:
        UsageError: it cannot be used.
    """
    if path is not None:
        return load_signing_key(path)
    text = os.environ.get(SIGNING_VARIABLE)
    return signing_key(text, f"the variable {SIGNING_VARIABLE}") if text else None


def given_public_keys(paths: Sequence[Path]) -> tuple[VerificationKey, ...] | None:
    """Return the public keys in files, or in PDP_VERIFICATION_KEYS when none is named; None when there is neither.

    Raises:
        UsageError: they cannot be used.
    """
    if paths:
        return load_public_keys(paths)
    text = os.environ.get(KEYS_VARIABLE)
    return public_keys(text, f"the variable {KEYS_VARIABLE}") if text else None


def needed_public_keys(paths: Sequence[Path]) -> tuple[VerificationKey, ...]:
    """Return the public keys as `given_public_keys` does.

    Raises:
        UsageError: there are none, or they cannot be used.
    """
    keys = given_public_keys(paths)
    if keys is None:
        raise UsageError(
            "no public key to verify with", hint=f"name one with --key, or give it in the variable {KEYS_VARIABLE}"
        )
    return keys


def shown(path: Path) -> str:
    """Return a file's name as JSON can have it: one that is not text, such as a lone byte 0xff, is replaced."""
    return os.fsencode(path).decode(errors="replace")


def _show_signed(bundle: Bundle, file: Path, *, as_json: bool) -> None:
    signature = bundle.signature
    fields: dict[str, Any] = {
        "file": shown(file), "revision": bundle.revision, "release": bundle.release, "digest": bundle.digest,
        "key_id": None if signature is None else signature.key_id,
        "algorithm": None if signature is None else signature.algorithm,
    }  # fmt: skip
    if as_json:
        print_json(fields)
        return
    tell(f"{shown(file)}: release {bundle.release}, signed")
    for name in ("revision", "digest", "key_id", "algorithm"):
        tell(f"  {name.replace('_', ' '):9}  {fields[name]}")
