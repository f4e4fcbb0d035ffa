"""The console: a page at the server's root, of static files that ask the server's other routes."""
