"""The commands that the door answers, each from its words to a reply.

A row is a hash: HGETALL gives its value columns and key columns as texts, GET all of it as JSON.
Commands that would write are refused as a read-only replica of Redis refuses them.

Source:  https://redis.io/docs/latest/commands/ for arguments, replies and the words of errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError, RequestError
from millpond.schema.values import encode_json, to_json, to_text
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.redis.keyspace import RedisKeys, split_key
from millpond.serve.redis.scan import Cursors, Place, matcher, may_match, scan_options
from millpond.serve.redis.transaction import AT_ONCE, REFUSED, TOO_LARGE, OneBatch, Transaction
from millpond.serve.redis.wire import OK, Error, Lines, Reply, Simple
from millpond.tables.answer import Row

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor
    from millpond.tables.table import Table

# As a version of Redis: clients decide by it what they may send.
REDIS_VERSION = "7.2.0"
_DATABASES = 1
# A command that names more keys runs in a thread.
_MANY_KEYS = 100

WRITES = frozenset(
    b"append bitfield bitop blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin copy decr decrby del delete "
    b"eval evalsha expire expireat fcall flushall flushdb function geoadd geosearchstore getdel getex getset hdel hexpire "
    b"hincrby hincrbyfloat hmset hset hsetnx incr incrby incrbyfloat linsert lmove lmpop lpop lpush lpushx lrem lset ltrim "
    b"migrate move mset msetnx persist pexpire pexpireat pfadd pfmerge psetex publish rename renamenx restore rpop rpoplpush "
    b"rpush rpushx sadd sdiffstore set setbit setex setnx setrange sinterstore smove sort spop spublish srem sunionstore "
    b"swapdb unlink xack xadd xautoclaim xclaim xdel xgroup xreadgroup xsetid xtrim zadd zdiffstore zincrby zinterstore "
    b"zmpop zpopmax zpopmin zrangestore zrem zremrangebylex zremrangebyrank zremrangebyscore zunionstore".split()
)
_CODES = {
    "REPLICA_BUILDING": "LOADING",
    "NO_COMMITTED_BATCH": "LOADING",
    "NOT_ALLOWED": "NOPERM",
    "TOKEN_NEEDED": "NOAUTH",
    "JOB_REPLACED": "MASTERDOWN",
}


@dataclass(slots=True)
class Client:
    """What the door knows of one connection.

    number:    of the connection
    address:   of the client
    reader:    None until it has given a token, where tokens are needed; and when that is valid no more
    authorization:  its token, as HTTP's header
    protocol:  2 or 3
    transaction:  what it has queued since MULTI, and what it watches
    tables:    that its present command has read
    batch:     the tables that its present transaction reads; None: the newest batch of each
    """

    number: int
    address: str
    reader: Reader | None
    transaction: Transaction
    protocol: int = 2
    authorization: bytes | None = None
    name: bytes = b""
    is_leaving: bool = False
    tables: set[str] = field(default_factory=set)
    batch: OneBatch | None = None


class RedisCommands:
    """Answers commands on the tables of a door.

    port:  at which they come
    """

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._keys: dict[str, tuple[Any, RedisKeys, list[tuple[str, bytes, Callable[[Any], bytes | None]]]]] = {}
        self._cursors = Cursors()
        self._began = time.time()
        self.port = 0

    def look_at_token(self, client: Client) -> None:
        """A token may have been taken back since the last command, or have expired."""
        if client.authorization is not None:
            try:
                client.reader = self._door.access.peek({b"authorization": client.authorization})
            except RequestError:
                client.reader = None

    def needs_time(self, words: list[bytes]) -> bool:
        """Whether a command reads more than some rows, so that others shouldn't wait for it."""
        name = words[0].lower()
        return name in (b"dbsize", b"info", b"scan") or (name in (b"mget", b"exists", b"watch") and len(words) > _MANY_KEYS)

    def transaction_needs_time(self, client: Client, words: list[bytes]) -> bool:
        """The same of all commands that EXEC runs."""
        queued = client.transaction.queued or ()
        return words[0].lower() == b"exec" and (sum(map(len, queued)) > _MANY_KEYS or any(map(self.needs_time, queued)))

    def answer(self, client: Client, words: list[bytes]) -> Reply:
        """The reply to a command.  Never raises a MillpondError."""
        transaction = client.transaction
        if not transaction.is_open or words[0].lower() in AT_ONCE:
            return self._answer(client, words)
        refused = self._refuse(client, words)
        if words[0].lower() in REFUSED and client.reader is not None:
            refused = Error("ERR Command not allowed inside a transaction")
        return transaction.queue(words) if refused is None else transaction.broken(refused)

    def _refuse(self, client: Client, words: list[bytes]) -> Error | None:
        """The error of a command that isn't known, allowed and well-formed."""
        name = words[0].lower()
        known = _COMMANDS.get(name)
        if known is None:
            if name in WRITES and client.reader is not None:
                return Error("READONLY You can't write against a read only replica.")
            shown = words[0][:128].decode("utf-8", "replace")
            beginning = " ".join(f"'{word[:128].decode('utf-8', 'replace')}'" for word in words[1:20])
            return Error(f"ERR unknown command '{shown}', with args beginning with: {beginning}")
        fewest, most, _, is_open = known
        if client.reader is None and not is_open:
            return Error("NOAUTH Authentication required.")
        if not fewest <= len(words) - 1 <= most:
            return Error(f"ERR wrong number of arguments for '{name.decode()}' command")
        return None

    def _answer(self, client: Client, words: list[bytes]) -> Reply:
        refused = self._refuse(client, words)
        if refused is not None:
            return refused
        _, _, run, _ = _COMMANDS[words[0].lower()]
        try:
            if client.reader is not None:
                self._door.access.count(client.reader, client.address)
            return run(self, client, words[1:])
        except MillpondError as error:
            return error_reply(error)

    # ------------------------------------------------------------ transactions

    def multi(self, client: Client, _: list[bytes]) -> Reply:
        return client.transaction.begin()

    def discard(self, client: Client, _: list[bytes]) -> Reply:
        return client.transaction.discard()

    def watch(self, client: Client, words: list[bytes]) -> Reply:
        return client.transaction.watch(words, lambda key: self._answer(client, [b"get", key]))

    def unwatch(self, client: Client, _: list[bytes]) -> Reply:
        return client.transaction.unwatch()

    def exec(self, client: Client, _: list[bytes]) -> Reply:
        with OneBatch(self._door.ponds) as client.batch:
            try:
                return client.transaction.run(
                    lambda key: self._answer(client, [b"get", key]),
                    lambda words: self._answer(client, words),
                    client.protocol,
                    self._door.settings.max_answer_bytes,
                )
            finally:
                client.batch = None

    # ------------------------------------------------------------ rows

    def _table(self, client: Client, name: str) -> Table:
        from millpond.serve.app import check_reader

        assert client.reader is not None
        check_reader(self._door.ponds, client.reader, name)
        client.tables.add(name)
        return self._door.ponds[name] if client.batch is None else client.batch[name]

    def _row(self, client: Client, key: bytes) -> tuple[str, Table, Row | None]:
        """The row of a Redis key; None or empty if there is none."""
        name, rest = split_key(key)
        table = self._table(client, name)
        found = self._forms(name, table)[0].parse(rest)
        return name, table, None if found is None else table.get(found)

    def _rows(self, client: Client, words: list[bytes]) -> list[tuple[str, Table, Row | None]]:
        """The rows of several Redis keys, those of a table all of one batch."""
        self._check_count(len(words))
        asked: dict[str, tuple[Table, dict[int, Any]]] = {}
        out: list[tuple[str, Table, Row | None]] = []
        for place, word in enumerate(words):
            name, rest = split_key(word)
            if name not in asked:
                asked[name] = self._table(client, name), {}
            table, keys = asked[name]
            found = self._forms(name, table)[0].parse(rest)
            if found is not None:
                keys[place] = found
            out.append((name, table, None))
        for name, (table, keys) in asked.items():
            for place, row in zip(keys, table.get_all(keys.values()), strict=True):
                out[place] = name, table, row
        return out

    def _forms(self, name: str, table: Table) -> tuple[RedisKeys, list[tuple[str, bytes, Callable[[Any], bytes | None]]]]:
        """The keys of a table, and how each of its columns is a text."""
        known = self._keys.get(name)
        if known is None or known[0] is not table.definition:
            definition = table.definition
            columns = [(c, c.encode("utf-8", "surrogateescape"), _text_of(type_)) for c, type_ in definition.types.items()]
            known = self._keys[name] = definition, RedisKeys(name, definition), columns
        return known[1], known[2]

    def get(self, client: Client, words: list[bytes]) -> Reply:
        name, table, row = self._row(client, words[0])
        return encode_json(self._door.shape(name, table).write(row)) if row else None

    def mget(self, client: Client, words: list[bytes]) -> Reply:
        out, size = list[Reply](), 0
        for name, table, row in self._rows(client, words):
            reply = encode_json(self._door.shape(name, table).write(row)) if row else None
            size += 0 if reply is None else len(reply)
            if size > self._door.settings.max_answer_bytes:
                return TOO_LARGE
            out.append(reply)
        return out

    def exists(self, client: Client, words: list[bytes]) -> Reply:
        return sum(bool(row) for _, _, row in self._rows(client, words))

    def type(self, client: Client, words: list[bytes]) -> Reply:
        return Simple("hash" if self._row(client, words[0])[2] else "none")

    def ttl(self, client: Client, words: list[bytes]) -> Reply:
        return -1 if self._row(client, words[0])[2] else -2

    def hgetall(self, client: Client, words: list[bytes]) -> Reply:
        return dict(self._texts(client, words[0]))

    def hkeys(self, client: Client, words: list[bytes]) -> Reply:
        return [name for name, _ in self._texts(client, words[0])]

    def hvals(self, client: Client, words: list[bytes]) -> Reply:
        return [value for _, value in self._texts(client, words[0])]

    def hlen(self, client: Client, words: list[bytes]) -> Reply:
        return len(self._texts(client, words[0]))

    def hget(self, client: Client, words: list[bytes]) -> Reply:
        return dict(self._texts(client, words[0])).get(words[1])

    def hexists(self, client: Client, words: list[bytes]) -> Reply:
        return int(words[1] in dict(self._texts(client, words[0])))

    def hmget(self, client: Client, words: list[bytes]) -> Reply:
        texts = dict(self._texts(client, words[0]))
        return [texts.get(word) for word in words[1:]]

    def _texts(self, client: Client, key: bytes) -> list[tuple[bytes, bytes]]:
        """The columns of a row that aren't NULL, as texts: a hash of Redis has no NULL.

        Raises:  as reading the row's values.
        """
        name, table, row = self._row(client, key)
        if not row:
            return []
        found = [(shown, write(row[column])) for column, shown, write in self._forms(name, table)[1]]
        return [(column, value) for column, value in found if value is not None]

    def _check_count(self, count: int) -> None:
        most = self._door.settings.max_keys
        if count > most:
            raise RequestError("INVALID_LIMIT", f"A command may name {most} keys, not {count}.", hint="Name fewer at a time.")

    # ------------------------------------------------------------ keys

    def _names(self, client: Client) -> list[str]:
        """The tables that the client may read."""
        reader, ponds = client.reader, self._door.ponds
        assert reader is not None
        return [name for name in ponds.tables() if reader is EVERYBODY or reader.may_read(ponds.names_of(name))]

    def dbsize(self, client: Client, _: list[bytes]) -> Reply:
        names = self._names(client)
        client.tables.update(names)
        return sum(int(self._table(client, name).count()) for name in names)

    def scan(self, client: Client, words: list[bytes]) -> Reply:
        options = scan_options(words)
        if isinstance(options, Error):
            return options
        cursor, pattern, count, kind = options
        place = self._cursors.place(cursor)
        if isinstance(place, Error):
            return place
        if kind not in (None, b"hash"):
            return [b"0", []]
        matching = matcher(pattern)
        names = [n for n in self._names(client) if place is None or n >= place.table]
        found: list[bytes] = []
        left = count
        for name in names:
            if not may_match(pattern, name.encode() + b":"):
                continue
            token = place.token if place is not None and place.table == name else None
            table = self._door.ponds[name]
            if left == 0:
                return [self._cursors.to(Place(name, None)), found]
            client.tables.add(name)
            keys = self._forms(name, table)[0]
            start = keys.start(pattern)
            page = table.scan(limit=left, token=token) if start is None else table.range(start=start, limit=left, token=token)
            here = [keys.write(row) for row in page]
            found += filter(matching, here)
            left -= len(page)
            if page.more and not (start is not None and keys.is_after(here[-1], pattern)):
                return [self._cursors.to(Place(name, page.token)), found]
        return [b"0", found]

    # ------------------------------------------------------------ the connection

    def ping(self, _: Client, words: list[bytes]) -> Reply:
        return words[0] if words else Simple("PONG")

    def echo(self, _: Client, words: list[bytes]) -> Reply:
        return words[0]

    def select(self, _: Client, words: list[bytes]) -> Reply:
        if not words[0].isdigit():
            return Error("ERR value is not an integer or out of range")
        return OK if int(words[0][:9]) < _DATABASES else Error("ERR DB index is out of range")

    def auth(self, client: Client, words: list[bytes]) -> Reply:
        if not self._door.access.needs_token:
            return Error(
                "ERR AUTH <password> called without any password configured for the default user. "
                "Are you sure your configuration is correct?"
            )
        authorization = b"Bearer " + words[-1]
        try:
            reader = self._door.access.admit({b"authorization": authorization}, client.address)
        except RequestError as refused:
            if refused.condition == "TOO_MANY_REQUESTS":
                raise
            return Error("WRONGPASS invalid username-password pair or user is disabled.")
        if len(words) == 2 and words[0] not in (b"default", reader.name.encode()):
            return Error("WRONGPASS invalid username-password pair or user is disabled.")
        client.reader, client.authorization = reader, authorization
        return OK

    def hello(self, client: Client, words: list[bytes]) -> Reply:
        protocol, rest = client.protocol, list(words)
        if rest:
            if not rest[0].isdigit():
                return Error("ERR Protocol version is not an integer or out of range")
            protocol = int(rest.pop(0)[:9])
            if protocol not in (2, 3):
                return Error("NOPROTO unsupported protocol version")
        name = None
        while rest:
            option = rest.pop(0).lower()
            if option == b"auth" and len(rest) >= 2:
                said = self.auth(client, [rest.pop(0), rest.pop(0)])
                if said is not OK:
                    return said
            elif option == b"setname" and rest:
                name = rest.pop(0)
            else:
                return Error(f"ERR Syntax error in HELLO option '{option[:40].decode('utf-8', 'replace')}'")
        if client.reader is None:
            return Error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
                "<pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
            )
        if name is not None:
            client.name = name[:128]
        client.protocol = protocol
        return {
            b"server": b"redis",
            b"version": REDIS_VERSION.encode(),
            b"proto": protocol,
            b"id": client.number,
            b"mode": b"standalone",
            b"role": b"replica",
            b"modules": [],
        }

    def reset(self, client: Client, _: list[bytes]) -> Reply:
        client.protocol, client.name, client.authorization = 2, b"", None
        client.transaction.clear()
        client.reader = None if self._door.access.needs_token else EVERYBODY
        return Simple("RESET")

    def quit(self, client: Client, _: list[bytes]) -> Reply:
        client.is_leaving = True
        return OK

    def acl(self, client: Client, words: list[bytes]) -> Reply:
        assert client.reader is not None
        if words[0].lower() == b"whoami" and len(words) == 1:
            return client.reader.name.encode() if client.reader is not EVERYBODY else b"default"
        return _unknown_part("ACL", words)

    def client(self, client: Client, words: list[bytes]) -> Reply:
        part = words[0].lower()
        if part == b"id":
            return client.number
        if part == b"getname":
            return client.name or None
        if part == b"setname" and len(words) == 2:
            client.name = words[1][:128]
            return OK
        if part in (b"setinfo", b"no-evict", b"no-touch"):
            return OK
        if part == b"info":
            return Lines(
                f"id={client.number} addr={client.address} name={client.name.decode('utf-8', 'replace')} resp={client.protocol}\n"
            )
        return _unknown_part("CLIENT", words)

    def command(self, _: Client, words: list[bytes]) -> Reply:
        part = words[0].lower() if words else b""
        if part == b"count":
            return len(_COMMANDS)
        if part == b"list":
            return sorted(_COMMANDS)
        if part == b"docs":
            return {}
        wanted = [word.lower() for word in words[1:]] if part == b"info" else sorted(_COMMANDS)
        return [_facts(name) if name in _COMMANDS else None for name in wanted]

    def config(self, _: Client, words: list[bytes]) -> Reply:
        if words[0].lower() != b"get":
            return _unknown_part("CONFIG", words)
        wanted = [matcher(word.lower()) for word in words[1:]]
        return {name: value for name, value in _CONFIG.items() if any(matching(name) for matching in wanted)}

    def info(self, client: Client, words: list[bytes]) -> Reply:
        wanted = {word.lower() for word in words} or {b"default"}
        parts = []
        for name, make in (("Server", self._about), ("Replication", self._about_replication), ("Keyspace", self._about_keys)):
            if wanted & {name.lower().encode(), b"default", b"all", b"everything"}:
                parts.append("".join([f"# {name}\r\n", *(f"{fact}:{value}\r\n" for fact, value in make(client))]))
        return Lines("\r\n".join(parts))

    def _about(self, _: Client) -> Iterator[tuple[str, object]]:
        yield "redis_version", REDIS_VERSION
        yield "redis_mode", "standalone"
        yield "millpond_version", version("millpond")
        yield "tcp_port", self.port
        yield "uptime_in_seconds", int(time.time() - self._began)

    def _about_replication(self, client: Client) -> Iterator[tuple[str, object]]:
        """Of each table, the batch that readers see and how old it is."""
        yield "role", "slave"
        for name in self._names(client):
            try:
                with self._door.ponds[name].begin() as read:
                    cut = read.cut
            except MillpondError as error:
                yield f"table_{name}", f"error={error.condition}"
            else:
                facts = f"job={cut.job},batch={cut.position.batch},behind_seconds={cut.lag.behind_seconds:.3f}"
                yield f"table_{name}", f"{facts},age_seconds={cut.lag.age_seconds:.3f}"

    def _about_keys(self, client: Client) -> Iterator[tuple[str, object]]:
        yield "db0", f"keys={self.dbsize(client, [])},expires=0,avg_ttl=0"


def error_reply(error: MillpondError) -> Error:
    """An error of ours as one of Redis: the code that clients know, then the condition, message and hint."""
    code = _CODES.get(error.condition, "ERR")
    return Error(f"{code} {error.condition} {error.message} {error.hint}".rstrip())


def _text_of(type_: Any) -> Callable[[Any], bytes | None]:
    """A column's value as a text: those with members as JSON."""
    if type_.kind in ("struct", "array", "map", "variant"):
        write = to_json(type_)
        return lambda value: None if value is None else encode_json(write(value))
    text = to_text(type_)
    return lambda value: None if value is None else text(value).encode("utf-8", "surrogateescape")


def _unknown_part(command: str, words: list[bytes]) -> Error:
    return Error(f"ERR unknown subcommand '{words[0][:40].decode('utf-8', 'replace')}'. Try {command} HELP.")


def _facts(name: bytes) -> Reply:
    """What COMMAND says of a command: name, arity, flags, where its keys are."""
    fewest, most, _, _ = _COMMANDS[name]
    arity = fewest + 1 if fewest == most else -(fewest + 1)
    has_key = name in _WITH_KEYS
    last = -1 if name in (b"mget", b"exists", b"watch") else 1
    return [name, arity, [Simple("readonly"), Simple("fast")], int(has_key), last if has_key else 0, int(has_key), [], [], [], []]


# Keyspace notifications: by key and by event, of all kinds.
_CONFIG = {b"notify-keyspace-events": b"AKE"}
_MANY = 1 << 30
_Run = Callable[[RedisCommands, Client, list[bytes]], Reply]
# name -> fewest and most arguments, the function, whether it needs no token
_COMMANDS: dict[bytes, tuple[int, int, _Run, bool]] = {
    b"get": (1, 1, RedisCommands.get, False),
    b"mget": (1, _MANY, RedisCommands.mget, False),
    b"exists": (1, _MANY, RedisCommands.exists, False),
    b"type": (1, 1, RedisCommands.type, False),
    b"ttl": (1, 1, RedisCommands.ttl, False),
    b"pttl": (1, 1, RedisCommands.ttl, False),
    b"hgetall": (1, 1, RedisCommands.hgetall, False),
    b"hget": (2, 2, RedisCommands.hget, False),
    b"hmget": (2, _MANY, RedisCommands.hmget, False),
    b"hkeys": (1, 1, RedisCommands.hkeys, False),
    b"hvals": (1, 1, RedisCommands.hvals, False),
    b"hlen": (1, 1, RedisCommands.hlen, False),
    b"hexists": (2, 2, RedisCommands.hexists, False),
    b"scan": (1, 9, RedisCommands.scan, False),
    b"dbsize": (0, 0, RedisCommands.dbsize, False),
    b"multi": (0, 0, RedisCommands.multi, False),
    b"exec": (0, 0, RedisCommands.exec, False),
    b"discard": (0, 0, RedisCommands.discard, False),
    b"watch": (1, _MANY, RedisCommands.watch, False),
    b"unwatch": (0, 0, RedisCommands.unwatch, False),
    b"ping": (0, 1, RedisCommands.ping, False),
    b"echo": (1, 1, RedisCommands.echo, False),
    b"select": (1, 1, RedisCommands.select, False),
    b"auth": (1, 2, RedisCommands.auth, True),
    b"hello": (0, _MANY, RedisCommands.hello, True),
    b"reset": (0, 0, RedisCommands.reset, True),
    b"quit": (0, _MANY, RedisCommands.quit, True),
    b"acl": (1, _MANY, RedisCommands.acl, False),
    b"client": (1, _MANY, RedisCommands.client, False),
    b"command": (0, _MANY, RedisCommands.command, False),
    b"config": (1, _MANY, RedisCommands.config, False),
    b"info": (0, _MANY, RedisCommands.info, False),
}
_WITH_KEYS = frozenset(b"get mget exists watch type ttl pttl hgetall hget hmget hkeys hvals hlen hexists".split())
