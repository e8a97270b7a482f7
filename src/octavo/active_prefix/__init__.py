"""A static cache whose attention sees the active prefix alone."""
