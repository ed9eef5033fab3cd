package authz.concerns.known_test

test_nothing := true
