package checks.rules.package_metadata_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.package_metadata

_module(file, package_annotations) := object.union(fixture.module(file, "package custom.concerns.c\n\nx := 1", []), {"tree": {"annotations": package_annotations}})

_both := {"scope": "package", "title": "T", "description": "D"}

_cases := {
	"title and description": {"files": [[_both]], "found": set()},
	"for what is below as well": {"files": [[object.union(_both, {"scope": "subpackages"})]], "found": set()},
	"in one of two files": {"files": [[], [_both]], "found": set()},
	"none": {"files": [[]], "found": {"the concern custom.concerns.c has no title and no description in its package's METADATA"}},
	"in none of two files": {
		"files": [[], []],
		"found": {"the concern custom.concerns.c has no title and no description in its package's METADATA"},
	},
	"an empty title": {
		"files": [[object.union(_both, {"title": ""})]],
		"found": {"the concern custom.concerns.c has no title in its package's METADATA"},
	},
	"a rule's": {
		"files": [[object.union(_both, {"scope": "rule"})]],
		"found": {"the concern custom.concerns.c has no title and no description in its package's METADATA"},
	},
}

test_package_metadata[name] if {
	some name, case in _cases
	modules := [_module($"{index}.rego", annotations) | some index, annotations in case.files]
	found := package_metadata.findings with input as fixture.checked(modules)

	fixture.messages(found) == case.found
	{finding.file | some finding in found} == {"0.rego" | count(case.found) > 0}
}

test_other_packages_need_none if {
	modules := [
		fixture.module("a.rego", "package authz.lib.a\n\nx := 1", []),
		fixture.module("b.rego", "package custom.concerns.a.nested\n\nx := 1", []),
		fixture.module("c.rego", "package custom.concerns\n\nx := 1", []),
	]
	package_metadata.findings == set() with input as fixture.checked(modules)
}
