# METADATA
# title: Todos
# description: |
#   The scenario of AuthZEN's public interoperability tests, in our words. All users see people and todos. Editors create
#   todos and change their own. An evil genius changes all todos, and an admin deletes all of them.
package custom.todo

# METADATA
# entrypoint: true
default allow := false

allow if {
	input.action.name in {"can_read_user", "can_read_todos"}
	count(_roles) > 0
}

allow if {
	input.action.name == "can_create_todo"
	count(_roles & {"admin", "editor"}) > 0
}

allow if {
	input.action.name == "can_update_todo"
	"evil_genius" in _roles
}

allow if {
	input.action.name == "can_delete_todo"
	"admin" in _roles
}

allow if {
	input.action.name in {"can_update_todo", "can_delete_todo"}
	"editor" in _roles
	input.resource.properties.ownerID == input.subject.properties.email
}

_roles := {role | some role in input.subject.properties.roles}

# METADATA
# entrypoint: true
access := {"decision": allow, "context": {"roles": sort(_roles)}}

# METADATA
# entrypoint: true
verdict := {"verdict": "ALLOW"} if allow

# METADATA
# entrypoint: true
broken := {"decision": "perhaps"}

# METADATA
# entrypoint: true
actions := ["can_read_user", "can_read_todos", "can_create_todo", "can_update_todo", "can_delete_todo"]

# METADATA
# entrypoint: true
owned := [id | some id, todo in data.directory.resources.todo; todo.ownerID == input.subject.properties.email]

# METADATA
# entrypoint: true
unlisted := {"todo-1": true}
