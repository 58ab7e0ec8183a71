"""Vectors on disk: one format, read and written here."""
