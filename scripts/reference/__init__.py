"""The generated pages of docs/reference. `python -m scripts.reference FOLDER` writes them; they are never committed.

`markdown` has the parts of pages. `fields` describes the files that people write and the request, `commands` the
command line, `codes` the reason and error codes, `http_api` the service, `python_api` the public modules, `operation`
metrics, alerts, audit events, commands.yaml and enforcement points. `conformance` compares the project with its five
documents.
"""
