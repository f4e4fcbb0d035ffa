/* Unpacks Spark's streams of LZ4 blocks, as `checkpoint/files/codecs.py` describes them. */

#include "native.h"

int32_t unpack_lz4(const byte *from, int64_t from_size, byte *to, int64_t to_size);
uint32_t xxh32(const byte *at, int64_t size, uint32_t seed);

enum { HEADER = 21, RAW = 0x10, PACKED = 0x20, MOST = 32 << 20, LZ4_RATIO = 255, LZ4_FLOOR = 64 };
static const uint32_t SEED = 0x9747B28Cu;

/* The bytes of a stream when unpacked; -1 if a block claims more than LZ4 can pack, or the stream lacks its end mark. */
int64_t measure_stream(const byte *data, int64_t total) {
    int64_t at = 0, sum = 0;
    int ended = 0;
    while (at < total) {
        if (total - at < HEADER || memcmp(data + at, "LZ4Block", 8)) return -1;
        int64_t packed = (int32_t)little4(data + at + 9), size = (int32_t)little4(data + at + 13);
        if (packed < 0 || packed > MOST || size < 0 || size > MOST) return -1;
        at += HEADER;
        ended = size == 0;
        if (ended) continue;
        if (packed > total - at || size > LZ4_RATIO * packed + LZ4_FLOOR) return -1;
        sum += size;
        at += packed;
    }
    return ended ? sum : -1;
}

/* Unpack a stream whose size `measure_stream` found; 0, or -1 if a block is damaged. */
int32_t unpack_stream(const byte *data, int64_t total, byte *out) {
    for (int64_t at = 0; at < total;) {
        byte method = data[at + 8] & 0xF0;
        int64_t packed = (int32_t)little4(data + at + 9), size = (int32_t)little4(data + at + 13);
        uint32_t checksum = little4(data + at + 17);
        at += HEADER;
        if (size == 0) continue;
        if (method == RAW) {
            if (packed != size) return -1;
            memcpy(out, data + at, (size_t)size);
        } else if (method != PACKED || unpack_lz4(data + at, packed, out, size)) {
            return -1;
        }
        if ((xxh32(out, size, SEED) & 0x0FFFFFFF) != checksum) return -1;
        at += packed;
        out += size;
    }
    return 0;
}
