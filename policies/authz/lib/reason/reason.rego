# METADATA
# title: Reasons
# description: Builds and checks reason objects, so that one place defines their shape.
package authz.lib.reason

# Takes the code, the message and the remedy from the METADATA of the calling rule. It is always defined, so that a deny
# without METADATA still denies. A reason without a remedy does not have the key.
new(metadata, details) := {
	"code": object.get(metadata, ["custom", "code"], "reason.unnamed"),
	"message": object.get(metadata, "description", ""),
	"details": details,
	"remedy": remedy,
} if {
	remedy := metadata.custom.remedy
	is_string(remedy)
} else := {
	"code": object.get(metadata, ["custom", "code"], "reason.unnamed"),
	"message": object.get(metadata, "description", ""),
	"details": details,
}

# The object is a well-formed reason whose code belongs to the concern.
well_formed(found, concern) if {
	is_object(found)
	is_string(found.code)
	startswith(found.code, concat("", [concern, "."]))
	is_string(found.message)
	is_object(found.details)
	_nothing_more(found)
}

_nothing_more(found) if count(found) == 3

_nothing_more(found) if {
	is_string(found.remedy)
	count(found) == 4
}
