"""The project file `pdp.yaml`: what an application and the commands of an author work with, stated once.

file       its fields, and what it opens; where it is looked for, and when it is trusted
resources  engine and stores of an enforcement point that is made from files
watch      what is in force while the files are being written
"""
