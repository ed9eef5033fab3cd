"""What an application, a server or a configuration really exposes, beside what the manifest says of it."""
