"""The doors for other programs.  Only `app` and `server` need Starlette, of `millpond[serve]`."""
