"""`pdp bundle build`, `inspect`, `keygen`, `sign`, `verify`: one bundle file; and public keys as commands have them."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pdp.cli.files import effective_manifests, needed, project_with
from pdp.cli.options import AsJson, Data, Governances, Manifests, Policies, file_argument, file_option
from pdp.cli.output import print_answer
from pdp.engine.bundle.file import Bundle, read_bundle, read_packed
from pdp.engine.bundle.signature import ALGORITHM, KEYS_VARIABLE, VerificationKey, load_public_keys, public_keys
from pdp.errors import UsageError
from pdp.workbench.bundles.build import compile_bundle, write_bundle
from pdp.workbench.bundles.inspect import inspect_bundle, inspection_lines
from pdp.workbench.bundles.sign import (
    PUBLIC_SUFFIX,
    SIGNING_VARIABLE,
    SigningKey,
    generate_key,
    load_signing_key,
    sign_bundle,
    signing_key,
)
from pdp.workbench.opa.modules import baseline_policies_path
from pdp.workbench.opa.program import needed_opa

BundleFile = Annotated[Path, file_argument("FILE", help="The bundle file.")]
PublicKeys = Annotated[
    list[Path] | None,
    file_option(
        "--public-key",
        help="A public key, PEM; else those in PDP_VERIFICATION_KEYS. May be repeated: one of them must have signed.",
    ),
]
PrivateKey = Annotated[
    Path | None, file_option("--private-key", help="The private key, PEM; else the one in PDP_SIGNING_KEY.")
]


def build(
    output: Annotated[
        Path | None, file_option("--output", "-o", help="The bundle file to write; the project's if absent.")
    ] = None,
    policies: Policies = None,
    data: Data = None,
    manifest: Manifests = None,
    governance: Governances = None,
    release: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="The release number; engines refuse to go back.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Build a bundle: policies, data and effective manifests in one file for both engines. Needs OPA.

    Exit code: 0 built, 2 bad usage or file, 1 anything else.
    """
    project = project_with(policies=policies, data=data)
    output = needed(output or project.bundle, "bundle", "--output")
    effective = effective_manifests(manifest or [], governance or [], project)
    packed = compile_bundle(
        policies=[baseline_policies_path(), *project.policies],
        data=project.data,
        manifests={loaded.digest: loaded.document for loaded in effective},
        tools=[tool for loaded in effective for tool in loaded.tools.values()],
        release=release,
        opa=needed_opa("building a bundle"),
    )
    write_bundle(output, packed)
    bundle = read_bundle(packed)
    concerns = bundle.data["config"]["required_concerns"]
    answer = {
        "file": str(output), "revision": bundle.revision, "release": bundle.release, "bytes": bundle.size,
        "manifests": {loaded.digest: loaded.version for loaded in effective}, "concerns": concerns,
    }  # fmt: skip
    lines = [
        f"{output}: release {bundle.release}, {bundle.size} bytes",
        f"  revision  {bundle.revision}",
        f"  concerns  {', '.join(concerns)}",
        *(f"  manifest  {loaded.version}  {loaded.digest}" for loaded in effective),
    ]
    print_answer(answer, lines, as_json=as_json)


def inspect(file: BundleFile, public_key: PublicKeys = None, as_json: AsJson = False) -> None:
    """Show what is in a bundle: concerns, manifests and tools, data, signature, size.

    Exit code: 0 shown, 2 bad usage or file, or not signed by one of the keys.
    """
    inspection = inspect_bundle(read_bundle(file, keys=given_keys(public_key)))
    # A bundle may be a stranger's: what is in it is shown, never obeyed.
    print_answer({"file": str(file), **inspection}, inspection_lines(str(file), inspection), as_json=as_json)


def keygen(
    output: Annotated[Path, file_option("--output", "-o", help="The private key; its public half goes to FILE.pub.")],
    as_json: AsJson = False,
) -> None:
    """Make a pair of keys to sign bundles with. Nothing is overwritten.

    Exit code: 0 made, 2 bad usage, or a file that is there already.
    """
    public = generate_key(output)
    answer = {
        "private": str(output), "public": f"{output}{PUBLIC_SUFFIX}", "key_id": public.id, "algorithm": ALGORITHM,
    }  # fmt: skip
    lines = [
        f"{output}: the private key, for those who release; nobody else may read it",
        f"{output}{PUBLIC_SUFFIX}: the public key, for engines and for OPA",
        f"  key id     {public.id}",
        f"  algorithm  {ALGORITHM}",
    ]
    print_answer(answer, lines, as_json=as_json)


def sign(
    file: BundleFile,
    output: Annotated[Path | None, file_option("--output", "-o", help="The signed bundle; in place if absent.")] = None,
    private_key: PrivateKey = None,
    as_json: AsJson = False,
) -> None:
    """Sign a bundle in OPA's format; `opa run --verification-key` accepts it.

    Exit code: 0 signed, 2 bad usage, file or key.
    """
    private = given_signing_key(private_key)
    if private is None:
        hint = f"name one with --private-key, or give it in the variable {SIGNING_VARIABLE}"
        raise UsageError("no private key to sign with", hint=hint)
    read_bundle(file)  # whose faults name the file
    signed = sign_bundle(read_packed(file), private)
    write_bundle(output or file, signed)
    _show_signed(read_bundle(signed, keys=[private.public]), output or file, as_json=as_json)


def verify(file: BundleFile, public_key: PublicKeys = None, as_json: AsJson = False) -> None:
    """Verify a bundle as engines do. Exit code: 0 good, 2 unsigned, wrongly signed, changed or no bundle."""
    _show_signed(read_bundle(file, keys=needed_keys(public_key)), file, as_json=as_json)


def given_signing_key(path: Path | None) -> SigningKey | None:
    """Return the private key in a file, or in PDP_SIGNING_KEY when no file is named; None when there is neither."""
    if path is not None:
        return load_signing_key(path)
    text = os.environ.get(SIGNING_VARIABLE)
    return signing_key(text, f"the variable {SIGNING_VARIABLE}") if text else None


def given_keys(files: list[Path] | None) -> tuple[VerificationKey, ...] | None:
    """Return the public keys in files, or in PDP_VERIFICATION_KEYS when none is named; None when there is neither."""
    if files:
        return load_public_keys(files)
    text = os.environ.get(KEYS_VARIABLE)
    return public_keys(text, f"the variable {KEYS_VARIABLE}") if text else None


def needed_keys(files: list[Path] | None) -> tuple[VerificationKey, ...]:
    """Return the public keys as `given_keys` does; that there are none is a UsageError as well."""
    keys = given_keys(files)
    if keys is None:
        hint = f"name one with --public-key, or give it in the variable {KEYS_VARIABLE}"
        raise UsageError("no public key to verify with", hint=hint)
    return keys


def _show_signed(bundle: Bundle, file: Path, *, as_json: bool) -> None:
    signature = bundle.signature
    fields: dict[str, Any] = {
        "file": str(file), "revision": bundle.revision, "release": bundle.release, "digest": bundle.digest,
        "key_id": None if signature is None else signature.key_id,
        "algorithm": None if signature is None else signature.algorithm,
    }  # fmt: skip
    stated = (f"  {name.replace('_', ' '):9}  {fields[name]}" for name in ("revision", "digest", "key_id", "algorithm"))
    print_answer(fields, [f"{file}: release {bundle.release}, signed", *stated], as_json=as_json)
