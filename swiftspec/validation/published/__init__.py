"""Measurements of others, or one's own from elsewhere, against predictions: files of loads and of speeds."""
