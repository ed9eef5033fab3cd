"""Calls whose tool another enforcement point runs: begun and finished here, by any process that has the stores.

calls: begin, finish, sweep: the way of such a call, and what its caller is answered
stored: what is stored of it, and the call made of that again
"""
