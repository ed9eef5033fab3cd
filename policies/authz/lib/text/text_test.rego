package authz.lib.text_test

import data.authz.lib.text
import rego.v2

test_small_and_capital_letters if {
	text.lowercase("Straße ÀΣ 1 Ⱟ𐕰İ") == "straße àσ 1 ⱟ𐖗i"
	text.uppercase("straße àς 1 ⱟ𐖗ı") == "STRAßE ÀΣ 1 Ⱟ𐕰I"
	text.lowercase("") == ""
	not text.lowercase(["A"])
	not text.uppercase(null)
}
