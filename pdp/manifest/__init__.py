"""The tool manifest: its model, how it is read and checked, and how governance makes it effective.

model: manifest, governance file and their entries
records: the small records that an entry is made of
fields: the scalar types of fields: names, classes, durations, versions
load: reads the files, every fault at once
findings: what rules find, as faults of one file; what is left of a faulty record
effective: manifest and governance merged, the stricter holding; its digest
exports: what a model may see of it
diff: what changed between two effective manifests
schema/: JSON Schemas of arguments and results
expressions/: values of mappings and conditions of invariants
rules/: what an entry, and all entries together, must keep; lint
programs/: templates and allow-list of command-line tools
spellings/: other spellings that load; the registry record
"""
