"""Commands around the decision service.

serve   the service itself
"""
