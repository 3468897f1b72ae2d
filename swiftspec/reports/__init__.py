"""Figures, pages and text that show profiles, plans and reports to people."""
