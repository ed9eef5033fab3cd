"""`pdp bundle`: what engines decide by. Imported when one of its commands is run.

files       build, inspect, keygen, sign, verify; and public keys as commands have them
diff        diff
repository  publish, rollback, list
"""

from pdp.cli.commands.bundle.diff import diff
from pdp.cli.commands.bundle.files import build, inspect, keygen, sign, verify
from pdp.cli.commands.bundle.repository import listing, publish, rollback
from pdp.cli.options import command_app

app = command_app("Build, inspect, compare, sign and publish the bundles that engines decide by.")
for command in (build, inspect, diff, keygen, sign, verify, publish, rollback):
    app.command()(command)
app.command("list")(listing)
