"""What a job costs a month, by what was measured of it and by a table of prices."""
