"""HTTP: the application, its routes, who may call them, and what goes in and out."""
