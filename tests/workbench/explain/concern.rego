package authz.concerns.c

# METADATA
# custom: {code: c.iterates}
deny contains {"code": "c.iterates", "x": number} if {
	some number in input.numbers
	number > data.settings.least
	number < 5
}

# METADATA
# custom: {code: c.asks}
deny contains {"code": "c.asks"} if _helped

_helped if input.subject.name == "x"

_helped if {
	count(input.numbers) > 0
	not _small(input.numbers)
}

_small(numbers) if numbers[0] < 100

# METADATA
# custom: {code: c.every}
deny contains {"code": "c.every"} if {
	every number in input.numbers {
		number > 2
	}
}
