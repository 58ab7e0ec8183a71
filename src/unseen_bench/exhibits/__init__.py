"""Rows as people read them: tables in the paper's layout, plots, one HTML file."""
