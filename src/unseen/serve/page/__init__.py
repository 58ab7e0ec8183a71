"""The page: static files and what serves them."""
