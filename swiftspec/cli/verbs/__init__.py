"""The verbs with flags and help, a file for each group of `swiftspec --help`. What they do is imported when called."""
