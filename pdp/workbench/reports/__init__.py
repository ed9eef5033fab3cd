"""What reports share.

shown_file  names of files, ranges of lines and texts, as people see them
"""
