"""The tool manifest: its model, how it is read and checked, and how governance makes it effective.

model: manifest, governance file, their entries, and the records that these are made of
fields: the scalar types of fields: names, classes, durations, versions
load: reads the files, every fault at once
spellings: other shapes that load, and where the file has their parts
effective: manifest and governance merged, the stricter holding; its digest
exports: what a model may see of it
diff: what changed between two effective manifests
programs: templates and allow-list of command-line tools
schema/: JSON Schemas of arguments and results
expressions/: values of mappings and conditions of invariants
rules/: what an entry, and all entries together, must keep; lint
"""
