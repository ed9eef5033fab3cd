"""Who would notice if it broke: policies, manifests and data changed in one place each, and the scenarios run again."""
