"""Files of every kind with something wrong in them, through the command line."""
