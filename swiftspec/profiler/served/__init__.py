"""Profiles of servers of other engines, measured from outside. No torch."""
