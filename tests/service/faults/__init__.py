"""Tests of the service with malformed, large, slow or repeated requests, and with database failures."""
