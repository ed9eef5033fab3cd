"""The tool manifest: its model, how it is read and checked, and how governance makes it effective."""
