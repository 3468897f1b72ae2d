"""Studies: what others published, done again with the package. `swiftspec study NAME` runs one.

A study has its programs, documents, options and tables in a folder of its own and may use all the rest of the package;
of the rest, only `swiftspec.cli.study` knows the studies, and imports one when it is asked for.
"""
