"""Planning of a fleet: which replica, and how many of them, serve a load within its limits."""
