package authz.lib.purpose_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.purpose

_for(value) := fixture.changed([{"op": "replace", "path": "/context/purpose", "value": value}])

test_each_of_the_entrys_is_allowed[name] if {
	some name in fixture.odd
	purpose.allowed with input as _for(name) with data.manifests as fixture.manifests({"purposes": fixture.odd}, [])
}

# A name that only resembles a purpose is not allowed.
test_near_a_purpose[name] if {
	some near in fixture.near("payments.supplier")
	some pair in [["payments.supplier", near], [near, "payments.supplier"]]
	name := json.marshal(pair)
	not purpose.allowed with input as _for(pair[0]) with data.manifests as fixture.manifests({"purposes": [pair[1], "x.y"]}, [])
}

# Two purposes do not add up to a third one.
test_purposes_are_not_put_together[name] if {
	some name in ["payments.supplier,payments.refund", "payments.supplier payments.refund", "payments.supplier.payments.refund"]
	not purpose.allowed with input as _for(name)
		with data.manifests as fixture.manifests({"purposes": ["payments.supplier", "payments.refund"]}, [])
}

test_no_purpose_of_an_empty_list[name] if {
	some name in array.concat(fixture.odd, ["payments.supplier", ""])
	not purpose.allowed with input as _for(name) with data.manifests as fixture.manifests({"purposes": []}, [])
}

test_any_purpose_where_the_entry_names_none[name] if {
	some name in fixture.odd
	purpose.allowed with input as _for(name) with data.manifests as fixture.manifests({}, ["purposes"])
}

test_none_is_stated[name] if {
	some value in [null, ""]
	name := json.marshal(value)
	not purpose.stated with input as _for(value)
	not purpose.allowed with input as _for(value) with data.manifests as fixture.manifests({}, ["purposes"])
}
