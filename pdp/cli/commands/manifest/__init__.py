"""`pdp manifest`, `pdp scan` and `pdp schema`: check, compare, export and import tool manifests; print schemas.

files    lint, export, diff
sources  import; `pdp scan`
schema   `pdp schema`
"""

from pdp.cli.commands.manifest.files import app
from pdp.cli.commands.manifest.sources import draft

app.command("import")(draft)
