"""The folder of all savepoints: list, delete, prune, schedule, export and import."""
