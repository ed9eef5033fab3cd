# METADATA
# title: Decimals
# description: |
#   Exact decimals for `data.authz.lib.number`. Both engines are exact for whole numbers of any size and for the text of a
#   number. So a decimal is a whole number of `units`, and 10 to the power of `scale` units make one.
package authz.lib.decimal

# The units and the scale of a number, for every spelling. Undefined for other types.
parsed(x) := {"units": _whole(digits) * ten(0 - scale), "scale": max([scale, 0])} if {
	is_number(x)
	halves := array.concat(split(lower($"{x}"), "e"), ["0"])
	parts := array.concat(split(halves[0], "."), [""])
	digits := concat("", [parts[0], parts[1]])
	scale := count(parts[1]) - _whole(halves[1])
}

# The number that consists of these units. Undefined from 10 to the power of 300, and with more than 1,200 decimals.
number(units, scale) := to_number(concat("", [_signs[units < 0], before, after])) if {
	scale <= 1200
	digits := trim_left($"{units}", "-")
	padded := concat("", [substring(_zeros, 0, max([(scale + 1) - count(digits), 0])), digits])
	at := count(padded) - scale
	at <= 300
	before := substring(padded, 0, at)
	after := trim_right(concat("", [".", substring(padded, at, scale)]), ".0")
}

# 10 to the power of `n`, up to 1,500; 1 for a negative `n`.
ten(n) := product([power |
	some start in _starts
	start < n
	power := to_number(concat("", ["1", substring(_zeros, 0, min([n - start, 250]))]))
])

# A number without decimals.
whole(x) if {
	value := parsed(x)
	value.units % ten(value.scale) == 0
}

# The sum of numbers. Undefined if an element has another type.
total(list) := number(sum([units | some value in values; units := value.units * ten(scale - value.scale)]), scale) if {
	values := _all(list)
	scale := max(array.concat([0], [value.scale | some value in values]))
}

# The product of numbers. Undefined if one of them is no number.
multiplied(list) := number(product([value.units | some value in values]), sum([value.scale | some value in values])) if {
	values := _all(list)
}

# A number rounded to this many decimals; a half is rounded away from zero.
rounded(x, decimals) := number((units + carried) * sign, value.scale) if {
	value := parsed(x)
	sign := {true: -1, false: 1}[value.units < 0]
	step := ten(value.scale - decimals)
	rest := abs(value.units) % step
	units := abs(value.units) - rest
	carried := {true: step, false: 0}[(2 * rest) >= step]
}

_all(list) := values if {
	is_array(list)
	values := [parsed(x) | some x in list]
	count(values) == count(list)
}

# OPA does not accept a number of more than 308 digits, so this reads the text in pieces.
_whole(text) := sum([units |
	digits := trim_left(text, "+-0")
	some start in _starts
	start < count(digits)
	piece := _piece(_signs[startswith(text, "-")], substring(digits, start, 250))
	units := piece * ten((count(digits) - start) - 250)
])

# JSON does not allow leading zeros.
_piece(sign, digits) := to_number(concat("", [sign, object.get({"": "0"}, bare, bare)])) if bare := trim_left(digits, "0")

_signs := {true: "-", false: ""}

_starts := [0, 250, 500, 750, 1000, 1250]

_hundred := "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"

_zeros := concat(_hundred, ["", "", "", "", "", "", "", "", "", "", "", "", ""])
