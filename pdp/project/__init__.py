"""The project file `pdp.yaml`: what an application and the commands of an author work with, stated once.

file  its fields; where it is looked for, and when it is trusted
"""
