"""What stands between an edit and a release: what a change changes, and whether it may go out."""
