"""One batch that the servers of all shards keep readable, by a token.

token   = the job's id, and for each shard its text, the address of a server, and that server's
          own token
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from millpond.errors import ReplicaError, RequestError
from millpond.router.common_batch import ShardCut, all_same, combined
from millpond.router.servers import Servers
from millpond.router.shard_map import ShardServers, state_of
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import CutToken
from millpond.tables.scan.token import pack, unpack
from millpond.wire.questions import AsOf


class _Place(msgspec.Struct, frozen=True, array_like=True):
    shard: str
    url: str
    token: str


class _Token(msgspec.Struct, frozen=True, array_like=True):
    job_id: str
    places: tuple[_Place, ...]


def keep_cuts(cuts: Sequence[ShardCut]) -> CutToken:
    """One token for the cuts of all shards."""
    kept = [at.kept for at in cuts if at.kept is not None]
    assert len(kept) == len(cuts), "they are of the newest batch"
    state = state_of(each.state for each in kept)
    assert state is not None, "they are of one batch"
    places = tuple(_Place(at.shard.shard, at.server.url, each.token) for at, each in zip(cuts, kept, strict=True))
    token = pack(_Token(state.job_id, places))
    cut = combined([at.cut for at in cuts])
    return CutToken(cut, token=token, seconds=min(each.seconds for each in kept), state=state)


def named_cuts(table: str, as_of: AsOf, shards: Sequence[ShardServers], bounds: Bounds | None, servers: Servers) -> list[ShardCut]:
    """The cuts that a token names, of these shards.

    Raises:  INVALID_TOKEN, CUT_EXPIRED; OTHER_JOB if the table is of another job; NOT_UP_TO_BOUND.
    """
    token = unpack(as_of.cut or "", _Token)
    if token is None:
        raise RequestError(
            "INVALID_TOKEN",
            "This isn't a cut's token: it is damaged, or a token of another kind.",
            hint="Give the token of GET /tables/{table}/cut, asked of the same router.",
            table=table,
        )
    places = {(place.shard, place.url): place.token for place in token.places}

    def open_(shard: ShardServers) -> ShardCut:
        server = next((server for server in shard.servers if (shard.shard, server.url) in places), None)
        if server is None:
            raise cut_expired(table)
        own = structs.replace(as_of, cut=places[shard.shard, server.url])
        found = server.run(server.table(table).as_of(own).get_all((), bounds=shard.bounds(bounds)))
        return ShardCut(shard, server, found.cut, own)

    return all_same(table, servers.each(open_, shards))


def cut_expired(table: str) -> ReplicaError:
    """A cut can no longer be read of all shards."""
    return ReplicaError(
        "CUT_EXPIRED",
        f"The cut can no longer be read of all shards of {table}: its time is over, or a server that kept it is gone.",
        hint="Open a new cut, and make all its reads sooner.",
        table=table,
    )
