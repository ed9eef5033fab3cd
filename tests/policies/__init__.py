"""The policies as engines decide by them."""
