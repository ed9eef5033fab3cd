"""The audit stream: events before and after a tool runs. Each event contains the hash of the event before it.

chain: the fields of an event, the append-only stream, and the stream in memory
verify: checks of an event and of a whole chain
archive: compressed files with the oldest events of a stream in a database
requests: recorded requests, encrypted, and their store in files
file: the stream in a file, shared by several processes; rotation, key and head (which names the last event); file
    locks and atomic writes
"""
