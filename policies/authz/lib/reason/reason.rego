# METADATA
# title: Reasons
# description: Builds and checks reason objects, so that their shape lives in one place.
package authz.lib.reason

# Takes the code, the message and the remedy from the calling rule's METADATA. Total on purpose: a deny whose annotation
# was forgotten still denies. A reason without remedy does not have the key.
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

# The object is a reason whose code belongs to the concern, and nothing more.
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
