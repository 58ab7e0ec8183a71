"""Methods that need names only, a file each."""
