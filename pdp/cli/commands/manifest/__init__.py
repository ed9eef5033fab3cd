"""`pdp manifest`, and `pdp scan`: a tool manifest as it is read, and beside what it is about.

files    lint, export, diff
sources  import; `pdp scan`
"""

from pdp.cli.commands.manifest.files import app
from pdp.cli.commands.manifest.sources import draft

app.command("import")(draft)
