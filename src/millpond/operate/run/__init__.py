"""Keep a program running whose jobs `millpond.start` starts: restarts, standbys, drills."""
