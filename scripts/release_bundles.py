"""The released bundles: built from their sources, signed, and checked. Run it as `scripts/release-bundles`.

    bundles/NAME.tar.gz           as `pdp bundle build` gives it, the same bytes on every machine. Engines and OPAs that
                                  have no key take it as it is; OPA without a key would refuse one that is signed
    bundles/NAME.signatures.json  its signature beside it: the `.signatures.json` that a signed bundle has inside
    bundles/keys/ID.pub           public keys by their ids, each of which may have signed; private halves are elsewhere
    bundles/releases.json         of each bundle the newest release that was signed: its number, revision and digest

A bundle that was signed keeps its release number for ever: when its content changes, the new one gets the next number,
since engines refuse two contents under one number. The record counts, not the signature's file: it is written before
the two, so whoever is interrupted has at worst skipped a number.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pdp.cli.bundle_keys import given_signing_key
from pdp.cli.engines import needed_opa
from pdp.engine.bundle.container import pack_members, unpack_bundle
from pdp.engine.bundle.file import read_bundle, read_packed
from pdp.engine.bundle.keys import load_public_keys
from pdp.engine.bundle.repository_index import Number, Sha256  # noqa: TC001 - pydantic reads them at run time
from pdp.engine.bundle.signature import SIGNATURES
from pdp.errors import BundleError, PdpError, UsageError
from pdp.json import JsonValueError, digest, parse_json
from pdp.manifest.load import load_effective
from pdp.workbench.bundles.build import compile_bundle, write_bundle
from pdp.workbench.bundles.keys import SIGNING_VARIABLE
from pdp.workbench.bundles.sign import sign_bundle, unsigned_members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.engine.bundle.file import Bundle
    from pdp.engine.bundle.keys import VerificationKey
    from pdp.workbench.bundles.keys import SigningKey

ROOT: Final = Path(__file__).resolve().parents[1]

EXAMPLES: Final = {"baseline": None, "payments": "examples/payments"}
"""The released bundles: the baseline alone, or with an example's policies, manifest and governance."""

RELEASES: Final = "bundles/releases.json"
"""The record of what was signed."""

_RUN: Final = "run: scripts/release-bundles --key FILE"


class Release(BaseModel):
    """The newest release of a bundle that was signed.

    Attributes:
        release: its number, which no other content ever gets.
        revision: digest of its content.
        digest: of its file without signature, as it stands in `bundles/`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    release: Number
    revision: Sha256
    digest: Sha256

    @classmethod
    def of(cls, packed: bytes) -> Release:
        """Return what the record says of a bundle without signature."""
        bundle = read_bundle(packed)
        return cls(release=bundle.release, revision=bundle.revision, digest=bundle.digest)


_RECORD: Final = TypeAdapter(dict[str, Release])

_RESTORE: Final = "restore it from version control: it says which release numbers are taken"


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
        """Build it from its sources; errors as of `pdp.workbench.bundles.build.compile_bundle`."""
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


def recorded(root: Path) -> dict[str, Release]:
    """Return the newest signed release of each bundle, by name.

    Raises:
        UsageError: the record is missing or damaged; nobody can say then which numbers are taken.
    """
    try:
        return _RECORD.validate_python(parse_json((root / RELEASES).read_bytes()))
    except OSError as error:
        raise UsageError(f"{RELEASES}: cannot be read: {error.strerror}", hint=_RESTORE) from error
    except JsonValueError as error:
        raise UsageError(f"{RELEASES}: {error}", hint=_RESTORE) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = "".join(f"{step}: " for step in first["loc"])
        raise UsageError(f"{RELEASES}: {at}{first['msg']}", hint=_RESTORE) from error


def check(root: Path, opa: Path) -> list[str]:
    """Return what is wrong: a bundle that its sources do not give, byte by byte, no key signed, or the record lacks.

    Nothing is signed for it: ES256 signs otherwise each time.
    """
    keys, record = public_keys(root), recorded(root)
    faults = [f"{RELEASES}: {name} is no bundle of ours" for name in record.keys() - EXAMPLES.keys()]
    for released in (Released(root, name) for name in EXAMPLES):
        try:
            packed = read_packed(released.bundle)
            if released.built(read_bundle(packed).release, opa) != packed:
                faults.append(f"{released.shown}: its sources give another one ({_RUN})")
            bundle = released.verified(keys)
        except PdpError as error:
            faults.append(str(error))
            continue
        if record.get(released.name) != Release.of(packed):
            faults.append(f"{released.shown}: signed, and not the release in {RELEASES} ({_RUN})")
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
    keys, record = public_keys(root), recorded(root)
    if key is not None and key.public.id not in {each.id for each in keys}:
        raise UsageError(
            f"the private key is {key.public.id}, which is none of bundles/keys",
            hint=f"sign with one of those; or put its public half there first, as {key.public.id}.pub",
        )
    changes = [_change(Released(root, name), record.get(name), opa, keys) for name in EXAMPLES]
    to_write = [change for change in changes if change.why]
    if to_write and key is None and not unsigned:
        what = "; ".join(f"{each.released.shown} ({each.why})" for each in to_write)
        raise UsageError(
            f"there is no private key, and to be signed are: {what}",
            hint=f"name it with --key, or give it in {SIGNING_VARIABLE}; without one, --unsigned builds, and --check "
            "fails until somebody who has the key runs this again",
        )
    # A number is taken before anything is signed under it. Who is interrupted in between has files that do not fit
    # together: the check tells, and the next run makes it good.
    files = {}
    if key is not None and to_write:
        record |= {each.released.name: Release.of(each.packed) for each in to_write}
        shown = {name: one.model_dump() for name, one in sorted(record.items())}
        files[root / RELEASES] = f"{json.dumps(shown, indent=2)}\n".encode()
    for each in to_write:
        files[each.released.bundle] = each.packed
        if key is not None:
            files[each.released.signature] = unpack_bundle(sign_bundle(each.packed, key))[SIGNATURES]
    _replace(files, root)
    for change in changes:
        if not change.why:
            print(f"{change.released.shown}: unchanged")
            continue
        if key is None:
            change.released.signature.unlink(missing_ok=True)
        bundle = read_bundle(change.packed)
        how = "not signed" if key is None else f"signed with {key.public.id}"
        print(f"{change.released.shown}: {change.why}; release {bundle.release}, {bundle.revision}, {how}")


def _replace(files: Mapping[Path, bytes], root: Path) -> None:
    """Write all of the files aside, and only then put one after the other in its place."""
    try:
        # On the same disk, but not in a folder that is packaged, if it should be left behind.
        with tempfile.TemporaryDirectory(dir=root, prefix=".release-") as aside:
            for path, content in files.items():
                file = Path(aside, path.name)
                file.write_bytes(content)
                file.chmod(0o644)
            for path in files:
                Path(aside, path.name).replace(path)
    except OSError as error:
        raise UsageError(f"bundles: cannot be written: {error.strerror}", hint="run it again when it can") from error


@dataclass(frozen=True, slots=True)
class _Change:
    """What a bundle has to be, and why it is written; without a reason it stays."""

    released: Released
    packed: bytes
    why: str


def _change(released: Released, last: Release | None, opa: Path, keys: Sequence[VerificationKey]) -> _Change:
    try:
        released.verified(keys)
        signed = Release.of(read_packed(released.bundle))
    except PdpError:
        signed = None
    # A lower number is what an interrupted run leaves. Any other would be given to two contents.
    if last is None:
        unknown = released.signature.is_file()
    else:
        unknown = signed is not None and signed != last and signed.release >= last.release
    if unknown:
        raise UsageError(f"{released.shown}: signed, and {RELEASES} does not have that release", hint=_RESTORE)
    packed = released.built(last.release if last else 1, opa)
    if last and digest(packed) != last.digest:
        # Whoever signed it: it may be in use somewhere, and its number is taken.
        packed = released.built(last.release + 1, opa)
    if not released.bundle.is_file():
        return _Change(released, packed, "new")
    found = read_packed(released.bundle)
    if found != packed:
        return _Change(released, packed, f"another content than {read_bundle(found).revision}")
    return _Change(released, packed, "" if signed else "not signed by a key of ours")


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
