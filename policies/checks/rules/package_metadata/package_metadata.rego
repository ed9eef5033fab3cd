# METADATA
# title: Metadata of packages
# description: A concern describes itself in the METADATA of its package; if it has several files, in one of them.
package checks.rules.package_metadata

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Concerns whose package lacks a title or a description.
findings contains modules.finding(
	file,
	concern.tree["package"],
	$"the concern {concern["package"]} has no {concat(" and no ", missing)} in its package's METADATA",
	"write a comment above `package` that begins with `# METADATA`, with `# title:` and `# description:`",
) if {
	some file, concern in modules.firsts
	missing := [field |
		some field in ["title", "description"]
		not _states(concern["package"], field)
	]
	count(missing) > 0
}

_states(concern, field) if {
	some module in modules.concerns
	module["package"] == concern
	some annotation in module.tree.annotations
	annotation.scope in {"package", "subpackages"}
	not annotation[field] in {"", null}
}
