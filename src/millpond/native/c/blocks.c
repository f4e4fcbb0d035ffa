/* Unpacks the blocks of an SST and decodes their entries, as `checkpoint/rocksdb/blocks.py` describes them. */

#include "native.h"

int32_t unpack_lz4(const byte *from, int64_t from_size, byte *to, int64_t to_size);

enum { TRAILER = 5, KEY_TAIL = 8, NONE = 0, LZ4 = 4, LZ4HC = 5, LZ4_RATIO = 255, LZ4_FLOOR = 64 };

/* A number of at most 35 bits; the position after it, or -1. */
static inline int64_t varint(const byte *data, int64_t at, int64_t end, int64_t *number) {
    uint64_t found = 0;
    if (at < end && data[at] < 0x80) {
        *number = data[at];
        return at + 1;
    }
    for (int shift = 0; shift < 35; shift += 7) {
        if (at >= end) return -1;
        byte next = data[at++];
        found |= (uint64_t)(next & 0x7F) << shift;
        if (next < 0x80) {
            *number = (int64_t)found;
            return at;
        }
    }
    return -1;
}

/* The bytes of these blocks when unpacked; -1 if one is neither plain nor LZ4, or claims more than LZ4 can pack.
   begin, size:  the place of each block in `file`, without its trailer
   sizes:        output: the unpacked bytes of each block */
int64_t measure_blocks(const byte *file, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, int64_t *sizes) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (begin[i] < 0 || size[i] < 0 || begin[i] > total - TRAILER || size[i] > total - TRAILER - begin[i]) return -1;
        byte kind = file[begin[i] + size[i]];
        int64_t unpacked = size[i];
        if (kind == LZ4 || kind == LZ4HC) {
            int64_t at = varint(file, begin[i], begin[i] + size[i], &unpacked);
            if (at < 0 || unpacked > LZ4_RATIO * (begin[i] + size[i] - at) + LZ4_FLOOR || unpacked > INT32_MAX) return -1;
        } else if (kind != NONE) {
            return -1;
        }
        sizes[i] = unpacked;
        sum += unpacked;
    }
    return sum;
}

/* Unpack blocks, one after the other, whose sizes `measure_blocks` found; 0, or -1. */
int32_t unpack_blocks(const byte *file, int64_t count, const int64_t *begin, const int64_t *size, const int64_t *sizes, byte *out) {
    for (int64_t i = 0; i < count; i++) {
        const byte *block = file + begin[i];
        if (block[size[i]] == NONE) {
            memcpy(out, block, (size_t)size[i]);
        } else {
            int64_t unpacked, at = varint(block, 0, size[i], &unpacked);
            if (at < 0 || unpacked != sizes[i] || unpack_lz4(block + at, size[i] - at, out, unpacked)) return -1;
        }
        out += sizes[i];
    }
    return 0;
}

/* The number of entries of unpacked blocks; -1 if a block contradicts itself.  If there are more than `capacity`, or their keys need
   more room, the rest is only counted, and the arrays are invalid.
   sizes:        of the blocks, which follow each other in `data`
   key_bytes:    input: the room of `keys`; output: the bytes of all keys
   keys:         output: the keys with their tails, one after the other
   key_begin, key_size:  output: the user keys in `keys`
   begin, size:  output: the values in `data` */
int64_t find_entries(const byte *data, int64_t count, const int64_t *sizes, int64_t capacity, int64_t *key_bytes, byte *keys,
                     int64_t *key_begin, int64_t *key_size, uint64_t *tags, int64_t *begin, int64_t *size) {
    int64_t found = 0, room = *key_bytes, used = 0, block = 0;
    for (int64_t i = 0; i < count; block += sizes[i++]) {
        int64_t block_end = block + sizes[i];
        if (sizes[i] < 4) return -1;
        int64_t points = little4(data + block_end - 4);
        if (points < 1 || points > (sizes[i] - 4) / 4) return -1;
        int64_t end = block_end - 4 - 4 * points, restarts = end, at = block, next = 0, before = 0;
        while (at < end || next < points) {
            int64_t restart = next < points ? block + (int64_t)little4(data + restarts + 4 * next) : -1;
            if (restart >= 0 && at >= restart) {
                /* Each restart point must be the beginning of an entry, or the end of an empty block. */
                if (at != restart) return -1;
                before = 0;
                next++;
                if (next < points && block + (int64_t)little4(data + restarts + 4 * next) <= restart) return -1;
                continue;
            }
            if (at >= end) return -1;
            int64_t shared, own, value;
            if ((at = varint(data, at, end, &shared)) < 0 || (at = varint(data, at, end, &own)) < 0 ||
                (at = varint(data, at, end, &value)) < 0)
                return -1;
            if (shared > before || own > end - at || value > end - at - own) return -1;
            int64_t whole = shared + own;
            if (whole < KEY_TAIL) return -1;
            if (found == capacity || whole > room - used) capacity = 0;
            if (found < capacity) {
                byte *key = keys + used;
                memcpy(key, key - before, (size_t)shared); /* the bytes shared with the key before */
                copy_short(key + shared, data + at, own, keys + room, data + end);
                key_begin[found] = used;
                key_size[found] = whole - KEY_TAIL;
                tags[found] = little8(key + whole - KEY_TAIL);
                begin[found] = at + own;
                size[found] = value;
            }
            used += whole;
            before = whole;
            at += own + value;
            found++;
        }
    }
    *key_bytes = used;
    return found;
}
