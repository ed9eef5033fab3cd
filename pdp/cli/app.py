"""The tree of commands. Each command's work stands in a module of its own, imported when it is run."""

# A command's options are its function's parameters, switches and all. `readable=False`: who reads a file says what is
# wrong with it, better than typer can. typer reads the annotations when the command line starts.
# ruff: noqa: FBT001, FBT002, PLR0917, TC001, TC003

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.main import get_group

from pdp.cli.manifest_app import manifest_app
from pdp.cli.options import (
    AsJson,
    Data,
    DecidingBundle,
    DecidingEngine,
    EngineName,
    Governance,
    HtmlFile,
    JunitFile,
    Manifest,
    OpaUrl,
    Policies,
    ProposalFile,
    ScenarioPaths,
    Session,
)
from pdp.cli.output import tell


class _LazyGroup(TyperGroup):
    """A group of commands that stand in the `app` of a module, imported when one of them is asked for."""

    module: str

    def list_commands(self, ctx: Any) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._load()
        return super().get_command(ctx, cmd_name)

    def _load(self) -> None:
        if not self.commands:
            group = import_module(self.module).app
            group.rich_markup_mode = self.rich_markup_mode
            self.commands.update(get_group(group).commands)


def _lazy(module: str, help: str) -> typer.Typer:  # noqa: A002 - as typer calls it
    return typer.Typer(help=help, no_args_is_help=True, cls=type("_Group", (_LazyGroup,), {"module": module}))


app = typer.Typer(
    name="pdp",
    help="Policy decisions for the tool calls of AI agents. New here? Run: pdp demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Frames and colours for people; scripts and logs get plain lines.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)
opa_app = typer.Typer(help="Find or install Open Policy Agent.", no_args_is_help=True)
policies_app = typer.Typer(help="The baseline's policies, which come with the package.", no_args_is_help=True)
db_app = typer.Typer(help="The database with idempotency keys, actions and approvals.", no_args_is_help=True)
app.add_typer(manifest_app, name="manifest")
app.add_typer(_lazy("pdp.cli.bundle", "Build, sign and publish the bundles that engines decide by."), name="bundle")
app.add_typer(opa_app, name="opa")
app.add_typer(_lazy("pdp.cli.release", "Check whether a bundle may be released."), name="release")
app.add_typer(policies_app, name="policies")
app.add_typer(db_app, name="db")

DatabaseUrl = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="sqlite:///pdp.db or postgresql://...; else the variable PDP_DATABASE_URL."),
]


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
    proposal: ProposalFile,
    manifest: Manifest,
    session: Session,
    governance: Governance = None,
    data: Data = None,
    policies: Policies = None,
    bundle: DecidingBundle = None,
    engine: DecidingEngine = "embedded",
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
    proposal: ProposalFile,
    manifest: Manifest,
    session: Session,
    governance: Governance = None,
    data: Data = None,
    policies: Policies = None,
    bundle: DecidingBundle = None,
    engine: DecidingEngine = "embedded",
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
    junit: JunitFile = None,
    html: HtmlFile = None,
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
    paths: ScenarioPaths,
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


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", readable=False, help="The folder; made when not there.")],
) -> None:
    """Start a project: manifest, governance, a concern of your own with its test, data, scenarios, CI.

    Nothing is overwritten.
    """
    from pdp.cli.init import init as run  # noqa: PLC0415

    raise typer.Exit(run(folder))


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
