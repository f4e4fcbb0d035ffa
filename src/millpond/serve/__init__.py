"""The doors that other programs use.  This package imports without Starlette; `app` and `server` need `millpond[serve]`."""
