"""What to do when a rule fires: the manual's text, for where the manual isn't at hand.

A test holds it against docs/alerts.md.
"""

from __future__ import annotations

RUNBOOK = {
    "state-large": "The files that Spark would load have more than 10 GiB. `millpond top` and `millpond inspect` show which "
    "operator and partition. State without a bound is the usual cause: no watermark, no TTL, a key that is drawn. "
    "See keyed-state.md for TTL and savepoints.md for taking rows out.",
    "state-fills": "By the straight line nearest to the samples of the last day, at least six hours, the state reaches the limit "
    "of `state-large` within a week. `millpond samples --last 24h` shows its growth.",
    "batch-slow": "The longest batch since the last sample took over a minute, for two minutes. Compare with the rows of a batch "
    "and the state's size. A batch during which the job was down counts with that time.",
    "batch-failed": "An error has ended a run of the job in the last quarter of an hour, also if the job runs again; or the "
    "job has stopped, and a batch is planned and not committed. Read the end of the driver's log, and the "
    "error of the newest run in `runs.json` of the job's folder. `millpond repair` says whether Spark can "
    "start from the checkpoint, and makes a copy that it starts from (repair.md).",
    "job-down": "A job of `start` or `publish` doesn't run. Readers get the last committed batch "
    "meanwhile. Jobs that neither `start` nor `publish` knows are never reported: nobody knows whether they "
    "run.",
    "recovery-slow": "The job was seen stopped, runs again, and has committed nothing for five minutes. Its first batch loads all "
    "of the state.",
    "batch-waits": "A batch was planned ten minutes ago, the job runs, and the batch isn't committed. See in Spark's UI what its "
    "tasks do.",
    "behind": "For a quarter of an hour the sources have had records that no batch has read, and there are more of them "
    "now than before. Known of Kafka, for jobs of `start` and `publish`. Give the job more cores or "
    "partitions (rescale (savepoints.md)).",
    "files-wait": "For a quarter of an hour a file has waited that was written over a quarter of an hour before, and the job "
    "doesn't catch up. Known of sources of files, for jobs of `start` and `publish`. Let a batch read more "
    "of them (`maxFilesPerTrigger`), or give the job more cores.",
    "watermark-still": "The watermark has been the same for ten minutes, while batches were committed: nothing expires. One source "
    "without events holds it back, or its events have no time.",
    "partition-skew": "The largest partition has over a mebibyte, and over five times the median one. Find the key with `millpond "
    "top` and salted (hot-keys.md) aggregations, or `millpond rescale` if many keys share the partition.",
    "state-slow": "One read of the state took over a tenth of a second, in the mean of a batch, for two minutes. Known of "
    "RocksDB, for jobs of `start` and `publish`. Give RocksDB more memory "
    "(`spark.sql.streaming.stateStore.rocksdb.*`) or a quicker disk; see how large the state is.",
    "late-rows": "In the last quarter of an hour, Spark dropped rows because they came after the watermark. Known for jobs "
    "of `start` and `publish`. A longer delay of the watermark keeps such rows, and keeps state for longer. "
    "Declared aggregates (aggregates.md) take late rows in.",
    "restarts-often": "The job was started more than three times within an hour, by `start` or with `publish`. `runs.json` in "
    "the job's folder has the error that ended each run; `millpond run` (run.md) says what to do about it.",
    "savepoint-overdue": "For two intervals the job has had batches that are in no scheduled savepoint. See whether the server"
    " that makes them runs (`millpond serve --savepoint-every`), and what its log says. After the end of "
    "a schedule, delete `schedule.json` in the job's folder.",
    "drill-failed": "The newest drill (run.md#drill) of the job didn't bring it back within the objective. The command says why; "
    "a later drill that goes well ends the alert.",
    "replica-failing": "For two minutes, the server's replica of the job can't be read, though the job has committed a batch and "
    "the replica isn't being built for the first time; or it is over a minute behind. Other jobs go on. "
    "`GET /jobs` and the server's log say why. Known where a server follows the job, and for three minutes after "
    "it has gone.",
    "backups-failing": "For five minutes, the newest try of the job's savepoints at intervals or of its archive went wrong. It is "
    "tried again by itself. The server's log has the error. Known of the server that makes them.",
}
