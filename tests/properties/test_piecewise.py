"""Records of a file that comes in pieces, cut anywhere and damaged anyhow, are those of the whole file."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.checkpoint.files.records import END_MARK, encode_record, iter_piecewise, iter_records
from millpond.errors import CheckpointError
from suite.sizes import examples

_BYTES = st.binary(max_size=40)
_RECORD = st.one_of(
    st.builds(encode_record, _BYTES, _BYTES),
    st.builds(lambda key: len(key).to_bytes(4, "big") + key + b"\xff" * 4, _BYTES),  # a delete
)


def outcome(records) -> tuple[list, str | None]:
    """The records, and the error that ended them, with the byte that it names."""
    found = []
    try:
        found.extend(records)
        return found, None
    except CheckpointError as error:
        return found, f"{error.condition} {error.message} {error.context.get('position')}"


@st.composite
def files(draw) -> bytes:
    data = b"".join(draw(st.lists(_RECORD, max_size=12))) + END_MARK
    damage = draw(st.sampled_from(("none", "cut", "byte", "more")))
    if damage == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if damage == "byte":
        at = draw(st.integers(0, len(data) - 1))
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data + draw(_BYTES) if damage == "more" else data


@given(data=files(), cuts=st.lists(st.integers(0, 600), max_size=30))
@settings(max_examples=examples(1000), deadline=None)
def test_pieces_have_the_records_of_the_whole(data: bytes, cuts: list[int]):
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(ends)]
    records, error = outcome(iter_records(data))
    piecewise, its_error = outcome(iter_piecewise(iter(pieces)))
    assert piecewise == records
    if error is None or "follow the end mark" not in error:  # how many follow isn't read to the end
        assert its_error == error
    else:
        assert its_error is not None
        assert its_error.split()[0] == error.split()[0]
