/* What all parts share.

   Every function gets memory that Python owns, with its size, and trusts nothing that stands in it: no length, offset or count
   is followed before it was held against what is there.  A function answers with a count, or with a negative number where the
   bytes aren't what it expects.  It never says what is wrong: the same bytes then go the plain way, which does. */

#ifndef MILLPOND_NATIVE_H
#define MILLPOND_NATIVE_H

#include <stdint.h>
#include <string.h>

typedef uint8_t byte;

static inline uint32_t little4(const byte *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline int32_t big4(const byte *at) {
    return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3]);
}

static inline uint64_t little8(const byte *at) { return (uint64_t)little4(at) | (uint64_t)little4(at + 4) << 32; }

/* Whether a piece lies inside of its buffer. */
static inline int is_inside(int64_t total, int64_t begin, int64_t size) {
    return begin >= 0 && size >= 0 && begin <= total && size <= total - begin;
}

/* Copy by sixteen where both sides have room behind: faster than memcpy for what rows and keys are. */
static inline void copy_short(byte *to, const byte *from, int64_t size, const byte *to_end, const byte *from_end) {
    if (size <= 64 && to_end - to >= 64 && from_end - from >= 64) {
        for (int64_t at = 0; at < size; at += 16) memcpy(to + at, from + at, 16);
    } else {
        memcpy(to, from, (size_t)size);
    }
}

#endif
