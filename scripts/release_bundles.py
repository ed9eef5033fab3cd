"""The released bundles: built from their sources, signed, and checked. Run it as `scripts/release-bundles`.

    bundles/NAME.tar.gz           as `pdp bundle build` gives it, the same bytes on every machine. Engines and OPAs that
                                  have no key take it as it is; OPA without a key would refuse one that is signed
    bundles/NAME.signatures.json  its signature beside it: the `.signatures.json` that a signed bundle has inside
    bundles/keys/ID.pub           public keys by their ids, each of which may have signed; private halves are elsewhere

A bundle that was signed keeps its release number for ever: when its content changes, the new one gets the next number,
since engines refuse two contents under one number.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.bundle.build import compile_bundle, write_bundle
from pdp.bundle.keys import SIGNING_VARIABLE
from pdp.bundle.signing import sign_bundle, unsigned_members
from pdp.cli.bundle_keys import given_signing_key
from pdp.cli.engines import needed_opa
from pdp.engine.bundle_file import read_bundle, read_packed
from pdp.engine.container import pack_members, unpack_bundle
from pdp.engine.keys import load_public_keys
from pdp.engine.signature import SIGNATURES
from pdp.errors import BundleError, PdpError, UsageError
from pdp.manifest.loading import load_effective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.bundle.keys import SigningKey
    from pdp.engine.bundle_file import Bundle
    from pdp.engine.keys import VerificationKey

ROOT: Final = Path(__file__).resolve().parents[1]

EXAMPLES: Final = {"baseline": None, "payments": "examples/payments"}
"""The released bundles: the baseline alone, or with an example's policies, manifest and governance."""

_RUN: Final = "run: scripts/release-bundles --key FILE"


@dataclass(frozen=True, slots=True)
class Released:
    """One bundle of the repository.

    Attributes:
        root: the repository.
        name: `baseline` or `payments`.
    """

    root: Path
    name: str

    @property
    def bundle(self) -> Path:
        """The bundle's file."""
        return self.root / "bundles" / f"{self.name}.tar.gz"

    @property
    def signature(self) -> Path:
        """The file of its signature."""
        return self.root / "bundles" / f"{self.name}.signatures.json"

    @property
    def shown(self) -> str:
        """The bundle's file, as messages name it."""
        return f"bundles/{self.name}.tar.gz"

    def built(self, release: int, opa: Path) -> bytes:
        """Build it from its sources; errors as of `pdp.bundle.build.compile_bundle`."""
        example = EXAMPLES[self.name]
        policies, manifests = [self.root / "policies"], {}
        if example is not None:
            folder = self.root / example
            policies.append(folder / "policies")
            effective = load_effective(folder / "manifest.json", folder / "governance.yaml")
            manifests[effective.digest] = effective.document
        return compile_bundle(policies=policies, manifests=manifests, release=release, opa=opa)

    def signed(self) -> bytes:
        """Return the bundle with its signature inside, as engines and OPAs that have a key take it.

        Raises:
            UsageError, BundleError: one of the two files is not there, or no bundle.
        """
        if not self.signature.is_file():
            raise BundleError(f"{self.shown}: not signed", hint=_RUN)
        return pack_members({**unsigned_members(read_packed(self.bundle)), SIGNATURES: self.signature.read_bytes()})

    def verified(self, keys: Sequence[VerificationKey]) -> Bundle:
        """Return the bundle, once it is sure that one of `keys` signed it.

        Raises:
            UsageError, BundleError: unsigned, signed with another key, or changed since.
        """
        try:
            return read_bundle(self.signed(), keys=keys)
        except BundleError as error:
            message = f"{self.shown}: {error.message.removeprefix('bundle: ').removeprefix(f'{self.shown}: ')}"
            raise BundleError(message, hint=_RUN) from error


def public_keys(root: Path) -> tuple[VerificationKey, ...]:
    """Return the public keys of the repository.

    Raises:
        UsageError: there is none, or a file that is not named by the id of the one key in it.
    """
    files = sorted((root / "bundles/keys").glob("*.pub"))
    if not files:
        raise UsageError("bundles/keys: no public key", hint="put one there as ID.pub; `pdp bundle keygen` says its id")
    for file in files:
        (*others, key) = load_public_keys([file])
        if others or file.name != f"{key.id}.pub":
            raise UsageError(f"bundles/keys/{file.name}: not the key of that id", hint=f"its name is {key.id}.pub")
    return load_public_keys(files)


def check(root: Path, opa: Path) -> list[str]:
    """Return what is wrong: a bundle that its sources do not give, byte by byte, or that no key of ours has signed.

    Nothing is signed for it: ES256 signs otherwise each time.
    """
    keys = public_keys(root)
    faults = []
    for released in (Released(root, name) for name in EXAMPLES):
        try:
            packed = read_packed(released.bundle)
            if released.built(read_bundle(packed).release, opa) != packed:
                faults.append(f"{released.shown}: its sources give another one ({_RUN})")
            bundle = released.verified(keys)
        except PdpError as error:
            faults.append(str(error))
            continue
        signer = bundle.signature.key_id if bundle.signature else None
        print(f"{released.shown}: release {bundle.release}, {bundle.revision}, signed with {signer}")
    return faults


def release(root: Path, opa: Path, key: SigningKey | None, *, unsigned: bool = False) -> None:
    """Bring every bundle up to date. Either all are written or, when a key is needed and missing, none.

    Args:
        root: the repository.
        opa: the program.
        key: signs what is not signed, or has changed.
        unsigned: take the signature away from what has changed, for somebody else to sign it.

    Raises:
        UsageError: no key and something to sign, or a key whose public half is not in the repository.
        PdpError: sources that cannot be built.
    """
    keys = public_keys(root)
    if key is not None and key.public.id not in {each.id for each in keys}:
        raise UsageError(
            f"the private key is {key.public.id}, which is none of bundles/keys",
            hint=f"sign with one of those; or put its public half there first, as {key.public.id}.pub",
        )
    changes = [_change(Released(root, name), opa, keys) for name in EXAMPLES]
    to_sign = [change for change in changes if change.packed is not None]
    if to_sign and key is None and not unsigned:
        what = "; ".join(f"{each.released.shown} ({each.why})" for each in to_sign)
        raise UsageError(
            f"there is no private key, and to be signed are: {what}",
            hint=f"name it with --key, or give it in {SIGNING_VARIABLE}; without one, --unsigned builds, and --check "
            "fails until somebody who has the key runs this again",
        )
    for change in changes:
        change.write(key)


@dataclass(frozen=True, slots=True)
class _Change:
    released: Released
    packed: bytes | None
    why: str

    def write(self, key: SigningKey | None) -> None:
        if self.packed is None:
            print(f"{self.released.shown}: unchanged")
            return
        signature = None if key is None else unpack_bundle(sign_bundle(self.packed, key))[SIGNATURES]
        # In this order: who is interrupted in between has a bundle without signature, which the check tells.
        self.released.signature.unlink(missing_ok=True)
        write_bundle(self.released.bundle, self.packed)
        if signature is not None:
            write_bundle(self.released.signature, signature)
        bundle = read_bundle(self.packed)
        how = "not signed" if key is None else f"signed with {key.public.id}"
        print(f"{self.released.shown}: {self.why}; release {bundle.release}, {bundle.revision}, {how}")


def _change(released: Released, opa: Path, keys: Sequence[VerificationKey]) -> _Change:
    if not released.bundle.is_file():
        return _Change(released, released.built(1, opa), "new")
    packed = read_packed(released.bundle)
    old = read_bundle(packed)
    now = released.built(old.release, opa)
    if now != packed:
        # Whoever signed it: with a signature it may be in use somewhere, and its number is taken.
        was_signed = released.signature.is_file()
        why = f"another content than {old.revision}"
        return _Change(released, released.built(old.release + 1, opa) if was_signed else now, why)
    try:
        released.verified(keys)
    except PdpError:
        return _Change(released, packed, "not signed by a key of ours")
    return _Change(released, None, "")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Do what the command line says; return 0, 1 when the check failed, 2 when something cannot be used."""
    options = argparse.ArgumentParser(prog="scripts/release-bundles", description="Builds and signs the bundles.")
    options.add_argument("--key", type=Path, metavar="FILE", help=f"the private key, PEM; else in {SIGNING_VARIABLE}")
    what = options.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="change nothing: rebuild, compare bytes, verify signatures")
    what.add_argument("--unsigned", action="store_true", help="build what has changed without signing it")
    what.add_argument(
        "--signed", type=Path, metavar="DIR", help="write the bundles there, each with its signature inside"
    )
    chosen = options.parse_args(arguments)
    try:
        if chosen.signed is not None:
            for released in (Released(root, name) for name in EXAMPLES):
                released.verified(public_keys(root))
                write_bundle(chosen.signed / released.bundle.name, released.signed())
            return 0
        opa = needed_opa("building bundles")
        if not chosen.check:
            release(root, opa, None if chosen.unsigned else given_signing_key(chosen.key), unsigned=chosen.unsigned)
            return 0
        faults = check(root, opa)
    except PdpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
