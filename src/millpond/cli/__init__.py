"""The command line, one file per command.

A command's module is imported when it is called: readers never load PySpark.
"""

from millpond.cli.group import Commands

main = Commands(
    name="millpond",
    help="""State you can query, for Spark streams.

    A command reads a pond (a folder that `millpond.start` wrote), the checkpoint folder of any streaming query, or a server's URL.

    \b
    Begin with:
      millpond demo
      millpond tables ./pond
      millpond COMMAND --help

    \b
    Exit codes: 0 done, 1 the row isn't there, 2 wrong call, 3 not there,
      4 can't answer now, 5 damaged or unknown data, 6 the machine lacks
      something, 10 to 13 verdicts of check-upgrade, 70 a mistake of ours,
      130 interrupted
    """,
)
