# METADATA
# title: Files
# description: |
#   A path that a model names stays below the working folder and is not hidden. The tools check the folder as well, because
#   only they can resolve links.
package custom.concerns.files

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Outside
# description: The path leads out of the working folder.
# custom:
#   code: files.outside
deny contains reason.new(rego.metadata.rule(), {"path": path}) if {
	some path in _paths
	not _below(path)
}

# METADATA
# title: Hidden
# description: The path leads to a hidden file or folder.
# custom:
#   code: files.hidden
deny contains reason.new(rego.metadata.rule(), {"path": path}) if {
	some path in _paths
	is_string(path)
	some part in split(path, "/")
	startswith(part, ".")
	not part in {".", ".."}
}

_paths contains input.context.arguments.path

_paths contains path if some path in input.context.arguments.paths

_below(path) if {
	is_string(path)
	not startswith(path, "/")
	not ".." in split(path, "/")
}
