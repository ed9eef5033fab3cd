"""What reports share.

html_page   pages that need nothing else
shown_file  names of files, ranges of lines and texts, as people see them
"""
