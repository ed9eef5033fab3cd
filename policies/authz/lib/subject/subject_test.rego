package authz.lib.subject_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.subject

# A chain of this many agents, the nearest first.
_chain := [
	{},
	{"act": {"sub": "1"}},
	{"act": {"sub": "1", "act": {"sub": "2"}}},
	{"act": {"sub": "1", "act": {"sub": "2", "act": {"sub": "3"}}}},
	{"act": {"sub": "1", "act": {"sub": "2", "act": {"sub": "3", "act": {"sub": "4"}}}}},
]

test_agents[size] if {
	some size, properties in _chain
	agents := subject.agents with input as fixture.changed([{"op": "replace", "path": "/subject/properties", "value": properties}])
	{agent.sub | some agent in agents} == {sprintf("%d", [number]) | some number in numbers.range(1, 4); number <= size}
}
