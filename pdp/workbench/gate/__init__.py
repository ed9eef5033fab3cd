"""The release gate: one line for each thing that has to hold before a bundle goes out."""
