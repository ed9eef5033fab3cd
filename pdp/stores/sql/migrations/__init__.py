"""How the tables came to be, step by step; env.py is what Alembic runs, versions/ has the steps."""
