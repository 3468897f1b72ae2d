"""pytest plugin: a plan's predictions, checked on this machine by a user's own tests."""
