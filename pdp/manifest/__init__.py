"""The tool manifest: models, loading, validation, and the merge with the governance file.

model: the models of the manifest and the governance file
fields: the scalar types of fields: names, classes, durations, versions
load: reads the files and reports all faults at once
spellings: converts alternative layouts of a manifest, and maps paths in the models back to the file
effective: the effective manifest (manifest and governance file merged), and its digest
roles: the member of `roles` that applies to a value
exports: the part of a manifest that a model sees
diff: the governance changes between two effective entries
versions: the changes between two effective manifests, and the versions that they need
programs: command line templates of tools, and the list of allowed programs
schema/: JSON Schemas of arguments and results
expressions/: the expressions of mappings and invariants
rules/: checks of each entry and of all entries together, and warnings about likely mistakes
"""
