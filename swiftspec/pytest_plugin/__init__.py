"""pytest plugin: users' own tests of a plan's predictions on this machine."""
