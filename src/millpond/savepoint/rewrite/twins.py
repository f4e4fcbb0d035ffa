"""The rows that Spark keeps beside those of a state variable, made anew from them.

| of          | beside them                                                                             |
|-------------|-----------------------------------------------------------------------------------------|
| a list      | `$rowCounter_NAME`: its key -> how many elements                                         |
| a TTL       | `$ttl_NAME`: when it expires, its key -> nothing                                         |
| a list's    | the same with the first time of its elements; `$min_NAME`: key -> that time;             |
|   TTL       | `$count_NAME`: key -> how many elements                                                  |
| timers      | `…Timers_timestampToKey`: time, key -> nothing; beside `…Timers_keyToTimestamp`          |

Source:  ListStateMetricsImpl, OneToOneTTLState, OneToManyTTLState, TimerStateImpl, Spark 4.3; every
         such row of the golden checkpoints is made from the variables' rows, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.checkpoint.whole.rows import COUNTER, Columns, StoreCodec
from millpond.savepoint.rewrite.row_edit import Row

BY_KEY, BY_TIME = "Timers_keyToTimestamp", "Timers_timestampToKey"
TTL, MIN, COUNT = "$ttl_", "$min_", "$count_"
EXPIRES = "ttlExpirationMs"
_NOTHING: list[Columns] = [(None,)]


def family_beside(family: str) -> str:
    """The variable whose rows a family stands beside; of any other, itself."""
    for front in (COUNTER, TTL, MIN, COUNT):
        if family.startswith(front):
            return family.removeprefix(front)
    return family.removesuffix(BY_TIME) + BY_KEY if family.endswith(BY_TIME) else family


def has_expiry(codec: StoreCodec, family: str) -> bool:
    """Whether a variable has a TTL."""
    columns = codec.of(family).schema.value
    return bool(columns) and columns[-1].name == EXPIRES and codec.has(TTL + family)


def rows_beside(codec: StoreCodec, family: str, key: Columns, elements: list[Columns]) -> Iterator[Row]:
    """The rows beside one row of a variable.

    elements:  of a list; of any other value, itself as the only one
    """
    of = codec.of(family)
    if family.endswith(BY_KEY):
        yield _row(codec, family.removesuffix(BY_KEY) + BY_TIME, (key[1], key[0]), _NOTHING)
    elif has_expiry(codec, family):
        first = min(element[-1] for element in elements)
        yield _row(codec, TTL + family, (first, key), _NOTHING)
        if of.is_list:
            yield _row(codec, MIN + family, key, [(first,)])
            yield _row(codec, COUNT + family, key, [(len(elements),)])
    elif of.is_list and codec.has(COUNTER + family):
        yield _row(codec, COUNTER + family, key, [(len(elements),)])


def _row(codec: StoreCodec, family: str, key: Columns, value: list[Columns]) -> Row:
    of = codec.of(family)
    return of.write_key(key), of.write_value(value)
