# The policy for the tests of the embedded engine: a normal decision, and one kind of misbehaviour for each action.
package authz

# METADATA
# entrypoint: true
decision := {
	"verdict": data.settings.verdict,
	"reasons": [{"code": _code, "message": "seen", "details": {"seen": input.context}}],
	"obligations": [],
	"bundle": data.config.bundle,
} if {
	input.action.name == "echo"
}

default _code := "probe.echo"

_code := "effects.gate_satisfied" if data.settings.verdict == "ALLOW"

# An empty pattern never returns in WebAssembly.
decision := replace(input.context.text, "", "") if input.action.name == "endless"

decision := numbers.range(1, 9007199254740993) if input.action.name == "hungry"

decision := value if {
	input.action.name == "conflict"
	some value in [1, 2]
}

# Patterns are cached in the module's memory, which is new for every evaluation.
decision := {
	"regex": [text | some text in input.context.texts; regex.match(`^a+b$`, text)],
	"glob": [text | some text in input.context.texts; glob.match("a*", [], text)],
	"numbers": {text: to_number(text) | some text in input.context.texts},
	"upper": {upper(text) | some text in input.context.texts},
} if {
	input.action.name == "builtins"
}

decision := [[x, y] | some x in input.context.many; some y in input.context.many] if input.action.name == "large"
