"""Running a tool that may run, and what can come of it."""
