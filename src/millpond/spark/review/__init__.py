"""What a program's streaming queries are, found out by running the program with nothing started."""
