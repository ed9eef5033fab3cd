"""Calls whose tool runs at another enforcement point. Any process with the same stores can begin and finish such calls.

calls: begins and finishes calls, ends overdue calls, and builds the answers to the caller
stored: the database record of a call, and how a call is restored from its record
"""
