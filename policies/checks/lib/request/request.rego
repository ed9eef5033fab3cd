# METADATA
# title: The request
# description: |
#   Lists the attributes that `data.authz.lib.shape` checks before a concern is evaluated. Each path has the one type that
#   the attribute can have. `*` is an element of a list or a value of an object.
package checks.lib.request

# METADATA
# title: Type
# description: The type of an attribute that exists; undefined when the type is not known.
type(path) := _required[path]

type(path) := _optional[path]

_required := {
	"input": "object",
	"input.subject": "object",
	"input.subject.type": "string",
	"input.subject.id": "string",
	"input.subject.properties": "object",
	"input.action": "object",
	"input.action.name": "string",
	"input.action.properties": "object",
	"input.action.properties.tool": "string",
	"input.action.properties.manifest_version": "string",
	"input.action.properties.manifest_digest": "string",
	"input.resource": "object",
	"input.resource.type": "string",
	"input.resource.id": "string",
	"input.resource.properties": "object",
	"input.context": "object",
}

_optional := {
	"input.subject.properties.scopes": "array",
	"input.subject.properties.scopes.*": "string",
	"input.subject.properties.clearances": "array",
	"input.subject.properties.clearances.*": "string",
	"input.subject.properties.roles": "array",
	"input.subject.properties.roles.*": "string",
	"input.subject.properties.limits": "object",
	"input.subject.properties.limits.*": "number",
	"input.subject.properties.entitlements": "object",
	"input.subject.properties.entitlements.corpora": "array",
	"input.subject.properties.entitlements.corpora.*": "string",
	"input.subject.properties.entitlements.documents": "array",
	"input.subject.properties.entitlements.documents.*": "string",
	"input.resource.properties.markings": "array",
	"input.resource.properties.markings.*": "string",
	"input.context.arguments": "object",
	"input.context.spent": "array",
	"input.context.spent.*": "object",
	"input.context.spent.*.limit": "string",
}
