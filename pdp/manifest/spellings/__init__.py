"""Other spellings of a manifest.

spellings: camelCase, short forms and the registry record, read as the models have them
registry_record: an entry written as a tool registry record
"""
