"""JSON Schemas of arguments and results.

walk: reads the values that a schema accepts, for all other modules
compile: closes schemas against unknown arguments, and validates values; explain: why a value is invalid
cost: estimates the cost of a validation before it runs
references: copies the targets of `$ref` in the file and in types.json into each schema
faults: finds all faults of a schema, with locations
shapes: the request and response skeletons of the ten patterns (shapes.json)
differences: changes between two schemas, the version bump they need, and drift of a tool from its declaration
"""
