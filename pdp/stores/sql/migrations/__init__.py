"""The migrations of the tables. Alembic runs env.py; versions/ has a module for each revision."""
