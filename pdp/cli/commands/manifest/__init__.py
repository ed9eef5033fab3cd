"""`pdp manifest` and `pdp scan`: check, compare, export and import tool manifests.

files    lint, export, diff
sources  import; `pdp scan`
"""

from pdp.cli.commands.manifest.files import app
from pdp.cli.commands.manifest.sources import draft

app.command("import")(draft)
