"""`pdp bundle`: builds, inspects, compares, signs, publishes and rolls back bundles."""

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pdp.audit.chain import AuditLog
from pdp.cli import Exit
from pdp.cli.display import progress
from pdp.cli.files import effective_manifests, open_audit, project_with, required
from pdp.cli.options import (
    AsJson,
    By,
    Data,
    EngineTimeout,
    Governances,
    Manifests,
    Policies,
    Scenarios,
    command_app,
    file_argument,
    file_option,
    user_name,
)
from pdp.cli.output import print_answer, print_line
from pdp.engine.bundle.file import Bundle, read_bundle, read_packed
from pdp.engine.bundle.signature import ALGORITHM, KEYS_VARIABLE, VerificationKey, load_public_keys, public_keys
from pdp.errors import UsageError
from pdp.opa.build import compile_bundle, write_bundle
from pdp.opa.modules import baseline_policies_path
from pdp.opa.program import needed_opa
from pdp.workbench.bundles.inspect import inspect_bundle, inspection_lines
from pdp.workbench.bundles.publish import ChannelChange, check_gate, history, next_release, publish_bundle, roll_back
from pdp.workbench.bundles.sign import (
    PUBLIC_SUFFIX,
    SIGNING_VARIABLE,
    SigningKey,
    generate_key,
    load_signing_key,
    sign_bundle,
    signing_key,
)
from pdp.workbench.diff import reports
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.known import read_log
from pdp.workbench.diff.result import FailOn
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

app = command_app("Build, inspect, compare, sign and publish the bundles that engines decide with.")

BundleFile = Annotated[Path, file_argument("FILE", help="The bundle file.")]
PublicKeys = Annotated[
    list[Path] | None,
    file_option(
        "--public-key",
        help="A public key file, PEM. Default: the keys in PDP_VERIFICATION_KEYS. May be repeated: one must sign.",
    ),
]
PrivateKey = Annotated[
    Path | None, file_option("--private-key", help="The private key file, PEM. Default: the key in PDP_SIGNING_KEY.")
]


@app.command()
def build(
    output: Annotated[
        Path | None, file_option("--output", "-o", help="The bundle file to write. Default: the project's.")
    ] = None,
    policies: Policies = None,
    data: Data = None,
    manifest: Manifests = None,
    governance: Governances = None,
    release: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="The release number. Engines reject a number below the last.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Build a bundle: one file with policies, data and effective manifests, for all engines. Needs OPA.

    Exit code: 0 built, 2 bad usage or file, 1 anything else.
    """
    project = project_with(policies=policies, data=data)
    output = required(output or project.bundle, "bundle", "--output")
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


@app.command()
def inspect(file: BundleFile, public_key: PublicKeys = None, as_json: AsJson = False) -> None:
    """Show a bundle's content: concerns, manifests and tools, data, signature, size.

    Exit code: 0 shown, 2 bad usage or file, or the bundle is not signed by one of the keys.
    """
    inspection = inspect_bundle(read_bundle(file, keys=given_keys(public_key)))
    # A bundle may come from an untrusted source, so its texts are escaped.
    print_answer({"file": str(file), **inspection}, inspection_lines(str(file), inspection), as_json=as_json)


@app.command()
def keygen(
    output: Annotated[Path, file_option("--output", "-o", help="The private key; the public key goes to FILE.pub.")],
    as_json: AsJson = False,
) -> None:
    """Create a key pair for signing bundles. Never overwrites a file.

    Exit code: 0 created, 2 bad usage, or a file exists already.
    """
    public = generate_key(output)
    answer = {
        "private": str(output), "public": f"{output}{PUBLIC_SUFFIX}", "key_id": public.id, "algorithm": ALGORITHM,
    }  # fmt: skip
    lines = [
        f"{output}: the private key; keep it secret",
        f"{output}{PUBLIC_SUFFIX}: the public key, for engines and for OPA",
        f"  key id     {public.id}",
        f"  algorithm  {ALGORITHM}",
    ]
    print_answer(answer, lines, as_json=as_json)


@app.command()
def sign(
    file: BundleFile,
    output: Annotated[Path | None, file_option("--output", "-o", help="The signed bundle. Default: FILE.")] = None,
    private_key: PrivateKey = None,
    as_json: AsJson = False,
) -> None:
    """Sign a bundle in OPA's format, which `opa run --verification-key` accepts.

    Exit code: 0 signed, 2 bad usage, file or key.
    """
    private = given_signing_key(private_key)
    if private is None:
        hint = f"give its PEM file with --private-key, or its text in the variable {SIGNING_VARIABLE}"
        raise UsageError("no private key to sign with", hint=hint)
    read_bundle(file)  # error messages show this name
    signed = sign_bundle(read_packed(file), private)
    write_bundle(output or file, signed)
    _show_signed(read_bundle(signed, keys=[private.public]), output or file, as_json=as_json)


@app.command()
def verify(file: BundleFile, public_key: PublicKeys = None, as_json: AsJson = False) -> None:
    """Verify a bundle's signature and content. Exit code: 0 valid, 2 unsigned, wrongly signed, changed or no bundle."""
    _show_signed(read_bundle(file, keys=needed_keys(public_key)), file, as_json=as_json)


def given_signing_key(path: Path | None) -> SigningKey | None:
    """Return the private key in the file `path`, or without a path in PDP_SIGNING_KEY; None without a key."""
    if path is not None:
        return load_signing_key(path)
    text = os.environ.get(SIGNING_VARIABLE)
    return signing_key(text, f"the variable {SIGNING_VARIABLE}") if text else None


def given_keys(files: list[Path] | None) -> tuple[VerificationKey, ...] | None:
    """Return the public keys in `files`, or without files in PDP_VERIFICATION_KEYS; None without keys."""
    if files:
        return load_public_keys(files)
    text = os.environ.get(KEYS_VARIABLE)
    return public_keys(text, f"the variable {KEYS_VARIABLE}") if text else None


def needed_keys(files: list[Path] | None) -> tuple[VerificationKey, ...]:
    """Return the public keys of `given_keys`. Raises `UsageError` if there are no keys."""
    keys = given_keys(files)
    if keys is None:
        hint = f"give its PEM file with --public-key, or its text in the variable {KEYS_VARIABLE}"
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


@app.command()
def diff(
    old: Annotated[Path, file_argument("OLD", help="The old bundle.")],
    new: Annotated[Path, file_argument("NEW", help="The new bundle.")],
    scenarios: Scenarios = None,
    log: Annotated[list[Path] | None, file_option(help="Recorded requests, JSON Lines. May be repeated.")] = None,
    generate: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, metavar="NUMBER", help="The maximum number of calls to generate; 0 for none."
        ),
    ] = 50_000,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit 1 if more is admitted, if that is not shown or not proved, or if anything differs."),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    engine_timeout: EngineTimeout = ENGINE_TIMEOUT,
    verbose: Annotated[bool, typer.Option("--verbose", help="List everything that no call tests.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two bundles: their structure, and their decisions on known and on generated calls.

    Exit code: 0 compared, 1 there is a difference that --fail-on names, 2 bad usage or file, or an engine timed out.
    If an engine timed out, the report shows the earlier findings, and any --fail-on fails.
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown cannot be used together", hint="use one of them")
    suites = load_suites(find_suites(scenarios or project_with().scenarios), engine_timeout)
    logs = [read_log(file) for file in log or []]
    with progress(quiet=as_json or as_markdown) as bar:
        advance = partial(bar.advance, bar.add_task("calls decided", total=None))
        difference = bundle_diff(
            old, new, suites=suites, logs=logs, most=generate, progress=advance, engine_timeout=engine_timeout
        )
    if fail_on is not None and not difference.decided:
        raise UsageError(
            f"--fail-on {fail_on} has no effect: no calls were compared",
            hint="give calls with --scenarios or --log, or generate them with --generate",
        )
    if as_markdown:
        print_line(reports.markdown(difference).rstrip("\n"))
    else:
        print_answer(difference.as_json(), reports.text_lines(difference, verbose=verbose), as_json=as_json)
    if difference.fails(fail_on):
        raise typer.Exit(Exit.FAILED)
    raise typer.Exit(Exit.USAGE if difference.unfinished else Exit.OK)


AUDIT_SUFFIX = ".audit.jsonl"
"""Suffix of a repository's audit stream. The file is beside the repository, because files in it may be served."""

Repository = Annotated[Path, file_argument("REPOSITORY", help="The repository's folder.")]
ChannelName = Annotated[str, typer.Option("--channel", metavar="NAME", help="The channel, such as stable or canary.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the history.")]
RepositoryAudit = Annotated[
    Path | None, file_option("--audit", help="The audit stream. Default: REPOSITORY.audit.jsonl.")
]


@app.command()
def publish(
    file: BundleFile,
    repository: Annotated[Path, file_argument("REPOSITORY", help="The repository's folder, created if missing.")],
    why: Why,
    channel: ChannelName = "stable",
    by: By = None,
    public_key: PublicKeys = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Publish without verifying a signature.")] = False,
    gate: Annotated[Path | None, file_option(help="The file that `pdp release check --result` wrote.")] = None,
    no_gate: Annotated[bool, typer.Option("--no-gate", help="Publish without a result of the gate.")] = False,
    audit: RepositoryAudit = None,
    as_json: AsJson = False,
) -> None:
    """Publish a bundle to a channel. Engines and OPAs that follow the channel load the bundle.

    Exit code: 0 published, 2 bad usage or file, not signed by one of the keys, or the release check has failed.
    """
    if gate is None and not no_gate:
        hint = "run `pdp release check --result FILE`, then add --gate FILE; or add --no-gate"
        raise UsageError("no result of the release check is given", hint=hint)
    if gate is not None and no_gate:
        raise UsageError("--gate and --no-gate cannot be used together", hint="remove one of them")
    if unsigned and public_key:
        raise UsageError("--unsigned and --public-key cannot be used together", hint="remove one of them")
    trusted = None if unsigned else needed_keys(public_key)
    bundle = read_bundle(file, keys=trusted)  # error messages show this name
    if gate is not None:
        check_gate(gate, bundle)
    with closing(_audit(repository, audit)) as stream:
        change = publish_bundle(
            repository, read_packed(file), channel=channel, by=user_name(by), why=why, audit=stream, keys=trusted
        )
    _show(repository, change, as_json=as_json)


@app.command()
def rollback(
    repository: Repository,
    why: Why,
    channel: ChannelName = "stable",
    by: By = None,
    to: Annotated[
        int | None, typer.Option(min=1, metavar="RELEASE", help="The release to restore. Default: the previous.")
    ] = None,
    private_key: PrivateKey = None,
    public_key: PublicKeys = None,
    audit: RepositoryAudit = None,
    as_json: AsJson = False,
) -> None:
    """Publish an older bundle again, with the next release number, because engines reject lower numbers.

    If the old bundle is signed, one of the public keys, or without any the private key, must match its signature.

    Exit code: 0 released, 2 bad usage, file or key.
    """
    private, trusted = given_signing_key(private_key), given_keys(public_key)
    with closing(_audit(repository, audit)) as stream:
        change = roll_back(
            repository, channel=channel, by=user_name(by), why=why, audit=stream, to=to, signing_key=private,
            keys=trusted,
        )  # fmt: skip
    _show(repository, change, as_json=as_json)


@app.command("list")
def listing(repository: Repository, as_json: AsJson = False) -> None:
    """List a repository's channels and its releases, with author, time and reason of each.

    Exit code: 0 shown, 2 bad usage or file.
    """
    changes = history(repository)
    if not changes:
        raise UsageError(f"{repository}: no published bundles", hint="publish a bundle with `pdp bundle publish`")
    current = sorted({change.channel: change for change in changes}.items())
    following = next_release(repository)
    answer = {
        "channels": {
            name: {"release": change.release, "revision": change.revision, "digest": change.digest}
            for name, change in current
        },
        "next_release": following,
        "history": [change.model_dump() for change in changes],
    }
    lines = [
        *(f"{name}: release {change.release}  {change.revision}" for name, change in current),
        f"next release: {following}",
        *(
            f"{number:5}  {change.time}  {_described(change)}  by {change.by}: {change.why}"
            for number, change in reversed([*enumerate(changes, start=1)])
        ),
    ]
    print_answer(answer, lines, as_json=as_json)


def _show(repository: Path, change: ChannelChange, *, as_json: bool) -> None:
    lines = [f"{repository}: {_described(change)}", f"  file  {change.digest}"]
    print_answer(change.model_dump(), lines, as_json=as_json)


def _described(change: ChannelChange) -> str:
    restored = "" if change.restores is None else f" with the content of release {change.restores}"
    return f"{change.action} {change.channel}: release {change.release}{restored}"


def _audit(repository: Path, path: Path | None) -> AuditLog:
    return open_audit(path or repository.with_name(repository.name + AUDIT_SUFFIX))
