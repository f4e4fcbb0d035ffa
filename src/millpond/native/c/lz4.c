/* Unpacks raw LZ4 blocks.  It rejects all that LZ4's own decoder rejects. */

#include "native.h"

/* A block ends with literals; a match ends at least so many bytes before the end, and begins at least so many before it. */
enum { LAST_LITERALS = 5, LAST_MATCH = 12 };

/* A count that continues while bytes are 255; -1 if the input ends first. */
static inline int64_t long_count(const byte **in, const byte *in_end, int64_t count) {
    byte more;
    do {
        if (*in >= in_end) return -1;
        more = *(*in)++;
        count += more;
    } while (more == 255);
    return count;
}

/* Unpack one block, which must fill `to` exactly; 0, or -1. */
int32_t unpack_lz4(const byte *from, int64_t from_size, byte *to, int64_t to_size) {
    const byte *in = from, *in_end = from + from_size;
    byte *out = to, *out_end = to + to_size;
    if (to_size == 0) return from_size == 1 && *from == 0 ? 0 : -1;
    for (;;) {
        if (in >= in_end) return -1;
        unsigned token = *in++;
        int64_t count = token >> 4;
        if (count < 15 && (token & 15) < 15 && in_end - in >= 32 && out_end - out >= 64) {
            /* Nearly all sequences: both copies have a fixed size; the next sequence overwrites the surplus. */
            memcpy(out, in, 16);
            const byte *back_at = in + count;
            int64_t back = back_at[0] | back_at[1] << 8;
            if (back >= 8 && back <= out + count - to) {
                out += count;
                in = back_at + 2;
                memcpy(out, out - back, 8);
                memcpy(out + 8, out + 8 - back, 8);
                memcpy(out + 16, out + 16 - back, 2);
                out += (token & 15) + 4;
                continue;
            }
        }
        if (count == 15 && (count = long_count(&in, in_end, count)) < 0) return -1;
        if (count > in_end - in || count > out_end - out) return -1;
        copy_short(out, in, count, out_end, in_end);
        in += count;
        out += count;
        if (in == in_end) return out == out_end ? 0 : -1;
        if (in_end - in < 2 + 1 + LAST_LITERALS || out_end - out < LAST_MATCH) return -1;
        int64_t back = in[0] | in[1] << 8;
        in += 2;
        if (back == 0 || back > out - to) return -1;
        count = token & 15;
        if (count == 15 && (count = long_count(&in, in_end, count)) < 0) return -1;
        count += 4;
        if (count > out_end - out - LAST_LITERALS) return -1;
        const byte *match = out - back;
        if (back >= 16 && out_end - out >= count + 16) {
            for (int64_t at = 0; at < count; at += 16) memcpy(out + at, match + at, 16);
        } else if (back >= 8 && out_end - out >= count + 8) {
            for (int64_t at = 0; at < count; at += 8) memcpy(out + at, match + at, 8);
        } else {
            for (int64_t at = 0; at < count; at++) out[at] = match[at];
        }
        out += count;
    }
}
