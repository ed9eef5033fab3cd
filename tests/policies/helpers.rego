package authz

import rego.v2

decision := [[name | some name in hits with input as case] | some case in input.cases]

_f(x) if object.get(input, "k9", x) == "x"
_f(x) if object.get(input, "k9", x)[_] == "x"
_g(x) := x if is_string(x)
_every(x) if every y in x { y == 1 }
_else(x) := false if { x == input.c } else := true if object.get(input, "k9", x).b
default _default(_) := false
_default(x) if object.get(input, "k9", x).b
default d := false
d if input.a.b
u := input.a.zz
m := {"x": 1, "y": false}
s contains "x"
s contains y if y := input.a.q
o[key] := value if some key, value in input.a
