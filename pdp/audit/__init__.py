"""What happened, in order and provably so: one event before a tool runs and one after, each chained to the last.

chain: what an event holds; the append-only stream of events, in memory
verify: the check of an event and of a whole chain
file: the stream in a file, which several processes append to; its rotation, its key, and its head, which names the
    last event; locking a file, and writing one whole or not at all
"""
