"""The tree of commands. Each command's work stands in a module of its own, imported when it is run."""

# A command's options are its function's parameters, switches and all. `readable=False`: who reads a file says what is
# wrong with it, better than typer can.
# ruff: noqa: FBT001, FBT002, PLR0917

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.cli.output import tell

app = typer.Typer(
    name="pdp",
    help="Policy decisions for the tool calls of AI agents. New here? Run: pdp demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Frames and colours for people; scripts and logs get plain lines.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)
manifest_app = typer.Typer(help="Check a tool manifest; export what a model may see of it.", no_args_is_help=True)
bundle_app = typer.Typer(help="Build, sign and publish the bundles that engines decide by.", no_args_is_help=True)
opa_app = typer.Typer(help="Find or install Open Policy Agent.", no_args_is_help=True)
app.add_typer(manifest_app, name="manifest")
app.add_typer(bundle_app, name="bundle")
app.add_typer(opa_app, name="opa")
release_app = typer.Typer(help="Check whether a bundle may be released.", no_args_is_help=True)
app.add_typer(release_app, name="release")
policies_app = typer.Typer(help="The baseline's policies, which come with the package.", no_args_is_help=True)
app.add_typer(policies_app, name="policies")
db_app = typer.Typer(help="The database with idempotency keys, actions and approvals.", no_args_is_help=True)
app.add_typer(db_app, name="db")

EngineName = Literal["embedded", "sidecar"]
ManifestFile = Annotated[
    Path, typer.Argument(metavar="MANIFEST", readable=False, help="The manifest, YAML or JSON; - for stdin.")
]
Manifest = Annotated[
    Path,
    typer.Option(
        "--manifest", "-m", metavar="FILE", readable=False, help="The tool manifest, YAML or JSON; - for stdin."
    ),
]
Governance = Annotated[
    Path | None,
    typer.Option(
        "--governance", "-g", metavar="FILE", readable=False, help="The policy author's half of the manifest."
    ),
]
Policies = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR", readable=False, help="A folder with concerns of your own, Rego; needs OPA. May be repeated."
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        readable=False,
        help="Data under directory or settings, YAML or JSON. May be repeated.",
    ),
]
OpaUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A running OPA: http://HOST:PORT or unix:///PATH; its token in PDP_OPA_TOKEN. Without it, sidecar "
        "starts one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print stable JSON and nothing else.")]


def _version(value: bool) -> None:
    if value:
        from pdp import __version__  # noqa: PLC0415

        tell(f"pdp {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Policy decisions for the tool calls of AI agents."""


@app.command()
def decide(
    proposal: Annotated[str, typer.Argument(metavar="PROPOSAL", help="The proposal, a JSON file; - for stdin.")],
    manifest: Manifest,
    session: Annotated[
        Path,
        typer.Option(
            "--session", "-s", metavar="FILE", readable=False, help="Claims, facts and keys, YAML or JSON; - for stdin."
        ),
    ],
    governance: Governance = None,
    data: Data = None,
    policies: Policies = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="The bundle to decide by; the released baseline if absent."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Who decides.")] = "embedded",
    opa_url: OpaUrl = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Append the audit event to this JSON Lines file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide one proposal; nothing is run and no approval is opened.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    from pdp.cli.decide import decide as run  # noqa: PLC0415

    raise typer.Exit(
        run(
            proposal=proposal, manifest=manifest, session=session, governance=governance, data=data or [],
            policies=policies or [], bundle=bundle, engine=engine, opa_url=opa_url, audit=audit, as_json=as_json,
        )
    )  # fmt: skip


@app.command()
def explain(
    proposal: Annotated[str, typer.Argument(metavar="PROPOSAL", help="The proposal, a JSON file; - for stdin.")],
    manifest: Manifest,
    session: Annotated[
        Path,
        typer.Option(
            "--session", "-s", metavar="FILE", readable=False, help="Claims, facts and keys, YAML or JSON; - for stdin."
        ),
    ],
    governance: Governance = None,
    data: Data = None,
    policies: Policies = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="The bundle to decide by; the released baseline if absent."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Who decides.")] = "embedded",
    as_json: AsJson = False,
) -> None:
    """Say why a proposal is decided as it is: checks, rules that fired, and where the others stopped.

    Exit code: 0 ALLOW, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
    """
    from pdp.cli.explain import run  # noqa: PLC0415

    raise typer.Exit(
        run(
            proposal=proposal, manifest=manifest, session=session, governance=governance, data=data or [],
            policies=policies or [], bundle=bundle, engine=engine, as_json=as_json,
        )
    )  # fmt: skip


@app.command()
def demo(
    engine: Annotated[EngineName, typer.Option(help="Who decides; sidecar starts a local OPA.")] = "embedded",
    opa_url: OpaUrl = None,
) -> None:
    """Tell the payments story: proposed, decided, run, recorded.

    Exit code: 0 when every verdict is the expected one, else 1.
    """
    from pdp.cli.demo import demo as run  # noqa: PLC0415

    raise typer.Exit(run(engine, opa_url))


@app.command("test")
def run_scenarios(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            readable=False,
            help="Scenario files, or folders with scenarios.yaml or NAME.scenarios.yaml in them.",
        ),
    ],
    engine: Annotated[
        Literal["embedded", "sidecar", "both"], typer.Option(help="Who decides; both have to agree.")
    ] = "embedded",
    opa_url: OpaUrl = None,
    expression: Annotated[
        str | None, typer.Option("-k", metavar="EXPR", help="Words of names, with and, or, not and brackets.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a report as JUnit's XML.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", readable=False, help="Write a report as a page.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Show what no scenario reaches.")] = False,
    fail_under: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="With --coverage: exit 1 when it is less.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run scenarios: what is expected of the policies, against what they decide.

    Exit code: 0 all passed, 1 a scenario failed (or too little is covered), 2 bad usage or a faulty file.
    """
    from pdp.cli.test import test as run  # noqa: PLC0415

    raise typer.Exit(
        run(
            paths, engine=engine, opa_url=opa_url, expression=expression, junit=junit, html=html, as_json=as_json,
            coverage=coverage, fail_under=fail_under,
        )
    )  # fmt: skip


@app.command()
def check(
    policies: Policies = None,
    scenarios: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", readable=False, help="Scenario files or folders that prove the concerns. May be repeated."
        ),
    ] = None,
) -> None:
    """Check how concerns are written: METADATA, codes, the traps of Rego, tests and scenarios. Needs OPA.

    Of the folders that are named, or without any of the baseline. Exit code: 0 no fault, 2 faults or bad usage.
    """
    from pdp.cli.check import check as run  # noqa: PLC0415

    raise typer.Exit(run(policies=policies or [], scenarios=scenarios or []))


@app.command()
def mutate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", readable=False, help="Scenario files, or folders with some in them."),
    ],
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Break the baseline's Rego as well as what the scenario files state.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only mutants that have this in their id or kind.")
    ] = None,
    equivalent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Mutants that change nothing; mutants.yaml beside the scenarios if absent.",
        ),
    ] = None,
    fail_under: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="Fail when fewer of them are killed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Break policies, manifests and data in one place at a time, and show what no scenario notices.

    Exit code: 0, or 1 below --fail-under, 2 bad usage or file, 130 interrupted.
    """
    from pdp.cli.mutate import mutate as run  # noqa: PLC0415

    raise typer.Exit(
        run(paths, baseline=baseline, only=only, equivalent=equivalent, fail_under=fail_under, as_json=as_json)
    )


@manifest_app.command("lint")
def manifest_lint(
    file: ManifestFile,
    governance: Governance = None,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for faults, as CI should.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report every fault of a manifest, and which clauses of the tool contract each tool meets.

    Exit code: 0 no fault, 2 faults (with --strict: or warnings).
    """
    from pdp.cli.manifest import lint  # noqa: PLC0415

    raise typer.Exit(lint(file, governance, strict=strict, as_json=as_json))


@manifest_app.command("export")
def manifest_export(
    file: ManifestFile,
    form: Annotated[
        Literal["plain", "openai", "anthropic", "mcp"], typer.Option("--format", help="Whose form of a tool list.")
    ] = "plain",
) -> None:
    """Print what a model may see of a manifest, as JSON: nothing of its governance."""
    from pdp.cli.manifest import export  # noqa: PLC0415

    raise typer.Exit(export(file, form))


@manifest_app.command("diff")
def manifest_diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", readable=False, help="The manifest as it was; - for stdin.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", readable=False, help="The manifest as it is; - for stdin.")],
    governance: Governance = None,
    old_governance: Annotated[
        Path | None,
        typer.Option(
            "--old-governance",
            metavar="FILE",
            readable=False,
            help="The governance file of OLD. --governance is NEW's.",
        ),
    ] = None,
    fail_on: Annotated[
        Literal["loosening", "unclear"] | None,
        typer.Option(help="Also fail on a change of governance that loosens; unclear: or of which it cannot be told."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what breaks callers, which versions miss a bump, and what is governed otherwise.

    Exit code: 0 nothing amiss, 1 a version misses its bump or --fail-on applies, 2 a faulty file.
    """
    from pdp.cli.manifest import diff  # noqa: PLC0415

    raise typer.Exit(
        diff(old, new, old_governance=old_governance, governance=governance, fail_on=fail_on, as_json=as_json)
    )


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
    governance: Annotated[
        list[Path] | None,
        typer.Option(
            "--governance",
            "-g",
            metavar="FILE",
            readable=False,
            help="The governance of the manifest at the same place in the line.",
        ),
    ] = None,
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


BundleFile = Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="The bundle file.")]


@bundle_app.command("sign")
def bundle_sign(
    file: BundleFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", readable=False, help="The signed bundle; in place if absent."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="The private key, PEM; else the one in PDP_SIGNING_KEY."),
    ] = None,
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
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="The private key, PEM; else the one in PDP_SIGNING_KEY."),
    ] = None,
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
    governance: Annotated[
        list[Path] | None,
        typer.Option(
            "--governance",
            "-g",
            metavar="FILE",
            readable=False,
            help="The governance of the manifest at the same place in the line.",
        ),
    ] = None,
    grid: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="NUMBER", help="How many calls to make up at most; 0: none.")
    ] = 50_000,
    html: Annotated[Path | None, typer.Option(metavar="FILE", readable=False, help="Write a report as a page.")] = None,
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


@release_app.command("check")
def release_check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", readable=False, help="Scenario files, or folders with some in them."),
    ],
    bundle: Annotated[
        Path, typer.Option("--bundle", "-b", metavar="FILE", readable=False, help="The bundle to be released.")
    ],
    last: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="The bundle of the last release.")
    ] = None,
    explanations: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Why each loosening since the last release is meant."),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="How much of the Rego scenarios must reach.")
    ] = None,
    mutation: Annotated[
        float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="How many mutants scenarios must notice.")
    ] = None,
    packs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", readable=False, help="A folder with contract test packs. May be repeated."),
    ] = None,
    audit: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="An audit file of a run with this bundle. May be repeated."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="A check to leave out. May be repeated.")
    ] = None,
    grid: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="NUMBER", help="As of `pdp bundle diff`.")
    ] = 50_000,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a report as JUnit's XML.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a bundle may be released: a line for each check, with the reason where it fails.

    Exit code: 0 nothing failed, 1 a check failed, 2 bad usage or file.
    """
    from pdp.cli.release import check as run  # noqa: PLC0415

    raise typer.Exit(
        run(
            paths, bundle=bundle, last=last, explanations=explanations, coverage=coverage, mutation=mutation,
            packs=packs or [], audit=audit or [], skip=skip or [], grid=grid, junit_file=junit, as_json=as_json,
        )
    )  # fmt: skip


@opa_app.command("install")
def opa_install() -> None:
    """Make sure that the right OPA is there, and print its path: found, downloaded, or built."""
    from pdp.cli.opa import install  # noqa: PLC0415

    raise typer.Exit(install())


@opa_app.command("path")
def opa_path() -> None:
    """Print the path of the OPA that would be used; exit 1 when there is none."""
    from pdp.cli.opa import path  # noqa: PLC0415

    raise typer.Exit(path())


DatabaseUrl = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="sqlite:///pdp.db or postgresql://...; else the variable PDP_DATABASE_URL."),
]


@db_app.command("upgrade")
def db_upgrade(url: DatabaseUrl = None) -> None:
    """Make the tables, or bring those of an older release up to date."""
    from pdp.cli.db import upgrade  # noqa: PLC0415

    raise typer.Exit(upgrade(url))


@db_app.command("prune")
def db_prune(url: DatabaseUrl = None) -> None:
    """Forget the results of calls whose time to live is over."""
    from pdp.cli.db import prune  # noqa: PLC0415

    raise typer.Exit(prune(url))


@policies_app.command("path")
def policies_path() -> None:
    """Print the folder with the baseline's Rego, for `opa test FOLDER/authz YOUR_FOLDER` and for editors."""
    from pdp.cli.policies import path  # noqa: PLC0415

    raise typer.Exit(path())


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", readable=False, help="The folder; made when not there.")],
) -> None:
    """Start a project: manifest, governance, a concern of your own with its test, data, scenarios, CI.

    Nothing is overwritten.
    """
    from pdp.cli.init import init as run  # noqa: PLC0415

    raise typer.Exit(run(folder))
