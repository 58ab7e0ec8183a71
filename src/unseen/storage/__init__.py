"""Atomic files, remote filesystems and where caches lie."""
