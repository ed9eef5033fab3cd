"""The commands of `pdp bundle`; see pdp/cli/app.py."""

# A command's options are its function's parameters, switches and all; typer reads their annotations.
# ruff: noqa: FBT002, PLR0917, TC001

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.cli.options import AsJson, Data, HtmlFile, Policies

bundle_app = typer.Typer(help="Build, sign and publish the bundles that engines decide by.", no_args_is_help=True)

PublicKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--key",
        metavar="FILE",
        readable=False,
        help="A public key, PEM; else those in PDP_VERIFICATION_KEYS. May be repeated: one of them must have signed.",
    ),
]
ChannelName = Annotated[Literal["stable", "canary"], typer.Option("--channel", help="Who gets it.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the history.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who does it; you if absent.")]
RepositoryAudit = Annotated[
    Path | None,
    typer.Option("--audit", metavar="FILE", readable=False, help="The audit stream; REPOSITORY.audit.jsonl if absent."),
]
PrivateKey = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", readable=False, help="The private key, PEM; else the one in PDP_SIGNING_KEY."
    ),
]
GovernanceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--governance",
        "-g",
        metavar="FILE",
        readable=False,
        help="The governance of the manifest at the same place in the line.",
    ),
]
BundleFile = Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="The bundle file.")]


@bundle_app.command("build")
def bundle_build(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="The bundle file to write.")
    ],
    policies: Policies = None,
    data: Data = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(
            "--manifest", "-m", metavar="FILE", readable=False, help="A manifest to decide for. May be repeated."
        ),
    ] = None,
    governance: GovernanceFiles = None,
    release: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="The release number; engines refuse to go back.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Build a bundle: policies, data and effective manifests in one file for both engines. Needs OPA."""
    from pdp.cli.bundle import build  # noqa: PLC0415

    raise typer.Exit(
        build(
            output, policies=policies or [], data=data or [], manifests=manifest or [], governance=governance or [],
            release=release, as_json=as_json,
        )
    )  # fmt: skip


@bundle_app.command("keygen")
def bundle_keygen(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", readable=False, help="The private key; its public half goes to FILE.pub."
        ),
    ],
    algorithm: Annotated[Literal["ES256", "RS256"], typer.Option(help="P-256, or RSA of 3072 bits.")] = "ES256",
    as_json: AsJson = False,
) -> None:
    """Make a pair of keys to sign bundles with. Nothing is overwritten."""
    from pdp.cli.bundle_signing import keygen  # noqa: PLC0415

    raise typer.Exit(keygen(output, algorithm=algorithm, as_json=as_json))


@bundle_app.command("sign")
def bundle_sign(
    file: BundleFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", readable=False, help="The signed bundle; in place if absent."),
    ] = None,
    key: PrivateKey = None,
    as_json: AsJson = False,
) -> None:
    """Sign a bundle in OPA's format; `opa run --verification-key` accepts it."""
    from pdp.cli.bundle_signing import sign  # noqa: PLC0415

    raise typer.Exit(sign(file, output=output, key=key, as_json=as_json))


@bundle_app.command("verify")
def bundle_verify(
    file: BundleFile,
    key: PublicKeys = None,
    least_release: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="Refuse a lower release number than this.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Verify a bundle as engines do. Exit code: 0 good, 2 unsigned, wrongly signed, changed, older or no bundle."""
    from pdp.cli.bundle_signing import verify  # noqa: PLC0415

    raise typer.Exit(verify(file, keys=key or [], least_release=least_release, as_json=as_json))


@bundle_app.command("inspect")
def bundle_inspect(file: BundleFile, key: PublicKeys = None, as_json: AsJson = False) -> None:
    """Show what is in a bundle: concerns and codes, manifests and tools, data, signature, size."""
    from pdp.cli.bundle_inspect import inspect  # noqa: PLC0415

    raise typer.Exit(inspect(file, keys=key or [], as_json=as_json))


@bundle_app.command("publish")
def bundle_publish(
    file: BundleFile,
    repository: Annotated[
        Path, typer.Argument(metavar="REPOSITORY", readable=False, help="The repository's folder; begun if it is new.")
    ],
    why: Why,
    channel: ChannelName = "stable",
    by: By = None,
    key: PublicKeys = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Publish it whoever signed it, or nobody.")] = False,
    gate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="What the release gate found, JSON; it must have passed."),
    ] = None,
    audit: RepositoryAudit = None,
    as_json: AsJson = False,
) -> None:
    """Publish a bundle: engines and OPAs that follow the channel get it."""
    from pdp.cli.bundle_repository import publish  # noqa: PLC0415

    raise typer.Exit(
        publish(
            file, repository, channel=channel, why=why, by=by, keys=key or [], unsigned=unsigned, gate=gate,
            audit=audit, as_json=as_json,
        )
    )  # fmt: skip


@bundle_app.command("rollback")
def bundle_rollback(
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", readable=False, help="The repository's folder.")],
    why: Why,
    channel: ChannelName = "stable",
    by: By = None,
    to: Annotated[
        int | None, typer.Option(min=1, metavar="RELEASE", help="Whose content comes back; the one before if absent.")
    ] = None,
    key: PrivateKey = None,
    verify_key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="A public key that may have signed the old release; else PDP_VERIFICATION_KEYS, else the private "
            "key's half. May be repeated.",
        ),
    ] = None,
    audit: RepositoryAudit = None,
    as_json: AsJson = False,
) -> None:
    """Release an older content anew, under the next number, as engines refuse to go back to a lower one."""
    from pdp.cli.bundle_repository import rollback  # noqa: PLC0415

    raise typer.Exit(
        rollback(
            repository, channel=channel, why=why, by=by, to=to, key=key, verify_keys=verify_key or [], audit=audit,
            as_json=as_json,
        )
    )  # fmt: skip


@bundle_app.command("list")
def bundle_list(
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="The repository, a folder or a URL.")],
    as_json: AsJson = False,
) -> None:
    """Show the channels of a repository, and who released what, when and why."""
    from pdp.cli.bundle_repository import listing  # noqa: PLC0415

    raise typer.Exit(listing(repository, as_json=as_json))


@bundle_app.command("diff")
def bundle_diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", readable=False, help="The bundle as it was.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", readable=False, help="The bundle as it is.")],
    scenarios: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", readable=False, help="Scenarios to decide by both. May be repeated."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", readable=False, help="Recorded requests to decide by both, JSON lines. May be repeated."
        ),
    ] = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="FILE",
            readable=False,
            help="A manifest of either bundle, to compare schemas and versions. May be repeated.",
        ),
    ] = None,
    governance: GovernanceFiles = None,
    grid: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="NUMBER", help="How many calls to make up at most; 0: none.")
    ] = 50_000,
    html: HtmlFile = None,
    fail_on: Annotated[
        Literal["loosening", "any"] | None, typer.Option(help="Exit 1 when something admits more, or differs at all.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a new bundle changes: in structure, on known calls, and on calls that nobody wrote down.

    Exit code: 0, or 1 when --fail-on applies, 2 bad usage or file.
    """
    from pdp.cli.bundle_diff import diff  # noqa: PLC0415

    raise typer.Exit(
        diff(
            old, new, scenarios=scenarios or [], logs=log or [], manifests=manifest or [], governance=governance or [],
            most=grid, html=html, fail_on=fail_on, as_json=as_json, as_markdown=as_markdown,
        )
    )  # fmt: skip
