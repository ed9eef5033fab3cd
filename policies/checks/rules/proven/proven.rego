# METADATA
# title: Proven by scenarios
# description: For every concern, a scenario expects at least one of its codes.
package checks.rules.proven

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Concerns whose codes are not expected by any scenario.
findings contains modules.finding(
	file,
	concern.tree["package"],
	$"no scenario expects a code of the concern {concern["package"]}",
	concat("", ["write one with `expect: {verdict: …, codes: [", concern.name, ".…]}`"]),
) if {
	is_array(input.scenario_codes)
	some file, concern in modules.firsts
	not _expected(concern.name)
}

_expected(concern) if {
	some code in input.scenario_codes
	startswith(code, $"{concern}.")
}
