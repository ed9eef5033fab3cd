"""`pdp bundle`: what engines decide by. Imported when one of its commands is run.

build       build, inspect
diff        diff
signing     keygen, sign, verify; and keys as commands are given them
repository  publish, rollback, list
"""

from __future__ import annotations

from pdp.cli.commands.bundle.build import build, inspect
from pdp.cli.commands.bundle.diff import diff
from pdp.cli.commands.bundle.repository import listing, publish, rollback
from pdp.cli.commands.bundle.signing import keygen, sign, verify
from pdp.cli.options import command_app

app = command_app("Build, inspect, compare, sign and publish the bundles that engines decide by.")
for command in (build, inspect, diff, keygen, sign, verify, publish, rollback):
    app.command()(command)
app.command("list")(listing)
