"""What comes to a service that its clients do not send: too much, too slow, malformed, said again; faults below it."""
