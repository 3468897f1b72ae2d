"""Reading and writing of files: bounded readers, and the one writer of outputs. No torch here."""
