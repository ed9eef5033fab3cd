"""What reports share.

html_page: pages that need nothing else; masking: hides sensitive arguments; shown_file: how a file is named.
"""
