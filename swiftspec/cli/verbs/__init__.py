"""The options of every verb: the fields of a frozen dataclass, whose docstring is the verb's help.

These modules are imported for every command and for `--help`: they import nothing of the package but flags.
"""
