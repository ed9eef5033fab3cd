"""The ten tool patterns at run time: what each of them demands of a call that may run, and of what it answers."""
