"""The project file `pdp.yaml`: the files and settings of an application, for the application and the commands.

file       its fields, how it is found, when it is trusted, and how the files it names are opened
resources  engine and stores of an enforcement point that is created from files
watch      reloads manifest, governance and policies while they are edited
"""
