"""The loop of an agent: a model proposes tool calls, the enforcement point decides them, the model sees what came."""
