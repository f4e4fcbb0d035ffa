/* Shared by all files.

   Every function gets memory that Python owns, and its size.  It trusts no byte of it: it compares each length, offset and count with
   the size before it uses it.  It returns a count, or a negative number if it rejects the input.  It doesn't say why: the Python code
   then reads the same bytes and raises the error. */

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

/* Whether a piece lies inside its buffer. */
static inline int is_inside(int64_t total, int64_t begin, int64_t size) {
    return begin >= 0 && size >= 0 && begin <= total && size <= total - begin;
}

/* Copy sixteen bytes at a time if both buffers have room: faster than memcpy for short rows and keys. */
static inline void copy_short(byte *to, const byte *from, int64_t size, const byte *to_end, const byte *from_end) {
    if (size <= 64 && to_end - to >= 64 && from_end - from >= 64) {
        for (int64_t at = 0; at < size; at += 16) memcpy(to + at, from + at, 16);
    } else {
        memcpy(to, from, (size_t)size);
    }
}

#endif
