"""JSON Schemas of arguments and results.

walk: what a schema admits, the one reading that the others ask
compile: schemas closed against unknown arguments, and validators; explain: why a value does not pass
cost: how much work a check is, counted before it is done
references: `$ref` into the file and into types.json, copied into each schema
faults: what is wrong with a schema, all of it, with places
shapes: the request and response skeletons of the ten patterns (shapes.json)
differences: what changed between two schemas, which version that asks for, and whether a tool takes what it declares
"""
