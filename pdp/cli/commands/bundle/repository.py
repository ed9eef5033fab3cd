"""`pdp bundle publish`, `rollback` and `list`."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from pdp.audit.chain import AuditLog
from pdp.cli.commands.bundle import files
from pdp.cli.files import open_audit
from pdp.cli.options import AsJson, By, file_argument, file_option, user_name
from pdp.cli.output import print_answer
from pdp.engine.bundle.file import read_bundle, read_packed
from pdp.errors import UsageError
from pdp.workbench.bundles.publish import ChannelChange, check_gate, history, next_release, publish_bundle, roll_back

AUDIT_SUFFIX = ".audit.jsonl"
"""Added to a repository's name for its audit stream, which lies beside it: not in it, where it would be served."""

Repository = Annotated[Path, file_argument("REPOSITORY", help="The repository's folder.")]
ChannelName = Annotated[str, typer.Option("--channel", metavar="NAME", help="Who gets it, such as stable or canary.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the history.")]
RepositoryAudit = Annotated[
    Path | None, file_option("--audit", help="The audit stream; REPOSITORY.audit.jsonl if absent.")
]


def publish(
    file: files.BundleFile,
    repository: Annotated[Path, file_argument("REPOSITORY", help="The repository's folder; begun if it is new.")],
    why: Why,
    channel: ChannelName = "stable",
    by: By = None,
    public_key: files.PublicKeys = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Publish it whoever signed it, or nobody.")] = False,
    gate: Annotated[Path | None, file_option(help="What `pdp release check --result` wrote about this bundle.")] = None,
    no_gate: Annotated[bool, typer.Option("--no-gate", help="Publish it without a result of the gate.")] = False,
    audit: RepositoryAudit = None,
    as_json: AsJson = False,
) -> None:
    """Publish a bundle: engines and OPAs that follow the channel get it.

    Exit code: 0 published, 2 bad usage or file, not signed by one of the keys, or the gate did not let it pass.
    """
    if gate is None and not no_gate:
        hint = "name what `pdp release check --result FILE` wrote with --gate FILE, or say --no-gate"
        raise UsageError("a bundle needs the result of the gate", hint=hint)
    if gate is not None and no_gate:
        raise UsageError("--gate and --no-gate exclude each other", hint="leave one of them out")
    if unsigned and public_key:
        raise UsageError("--unsigned and --public-key exclude each other", hint="leave one of them out")
    trusted = None if unsigned else files.needed_keys(public_key)
    bundle = read_bundle(file, keys=trusted)  # whose faults name the file
    if gate is not None:
        check_gate(gate, bundle)
    with closing(_audit(repository, audit)) as stream:
        change = publish_bundle(
            repository, read_packed(file), channel=channel, by=user_name(by), why=why, audit=stream, keys=trusted
        )
    _show(repository, change, as_json=as_json)


def rollback(
    repository: Repository,
    why: Why,
    channel: ChannelName = "stable",
    by: By = None,
    to: Annotated[
        int | None, typer.Option(min=1, metavar="RELEASE", help="Whose content comes back; the one before if absent.")
    ] = None,
    private_key: files.PrivateKey = None,
    public_key: files.PublicKeys = None,
    audit: RepositoryAudit = None,
    as_json: AsJson = False,
) -> None:
    """Release an older content anew, under the next number, as engines refuse to go back to a lower one.

    What is signed anew must have been signed by the private key, or by a public key that is named.

    Exit code: 0 released, 2 bad usage, file or key.
    """
    private, trusted = files.given_signing_key(private_key), files.given_keys(public_key)
    with closing(_audit(repository, audit)) as stream:
        change = roll_back(
            repository, channel=channel, by=user_name(by), why=why, audit=stream, to=to, signing_key=private,
            keys=trusted,
        )  # fmt: skip
    _show(repository, change, as_json=as_json)


def listing(repository: Repository, as_json: AsJson = False) -> None:
    """Show the channels of a repository, and who released what, when and why.

    Exit code: 0 shown, 2 bad usage or file.
    """
    changes = history(repository)
    if not changes:
        raise UsageError(f"{repository}: nothing was published there", hint="publish: pdp bundle publish")
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
