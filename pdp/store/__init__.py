"""The database: what has to survive the process and be the same for all processes. SQLite by default, or PostgreSQL."""
