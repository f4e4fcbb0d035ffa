/* The checksums of Spark's LZ4 blocks (XXH32) and of an SST's blocks (XXH3): xxHash 0.8, of which only what these need is here. */

#include "native.h"

static const uint32_t PRIME32_1 = 0x9E3779B1u, PRIME32_2 = 0x85EBCA77u, PRIME32_3 = 0xC2B2AE3Du, PRIME32_4 = 0x27D4EB2Fu,
                      PRIME32_5 = 0x165667B1u;
static const uint64_t PRIME64_1 = 0x9E3779B185EBCA87u, PRIME64_2 = 0xC2B2AE3D27D4EB4Fu, PRIME64_3 = 0x165667B19E3779F9u,
                      PRIME64_4 = 0x85EBCA77C2B2AE63u, PRIME64_5 = 0x27D4EB2F165667C5u;

static inline uint32_t turned(uint32_t word, int by) { return word << by | word >> (32 - by); }

static inline uint32_t stirred(uint32_t lane, const byte *at) { return turned(lane + little4(at) * PRIME32_2, 13) * PRIME32_1; }

uint32_t xxh32(const byte *at, int64_t size, uint32_t seed) {
    const byte *end = at + size;
    uint32_t hash = seed + PRIME32_5;
    if (size >= 16) {
        uint32_t a = seed + PRIME32_1 + PRIME32_2, b = seed + PRIME32_2, c = seed, d = seed - PRIME32_1;
        for (; end - at >= 16; at += 16) {
            a = stirred(a, at);
            b = stirred(b, at + 4);
            c = stirred(c, at + 8);
            d = stirred(d, at + 12);
        }
        hash = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18);
    }
    hash += (uint32_t)size;
    for (; end - at >= 4; at += 4) hash = turned(hash + little4(at) * PRIME32_3, 17) * PRIME32_4;
    for (; at < end; at++) hash = turned(hash + *at * PRIME32_5, 11) * PRIME32_1;
    hash = (hash ^ hash >> 15) * PRIME32_2;
    hash = (hash ^ hash >> 13) * PRIME32_3;
    return hash ^ hash >> 16;
}

/* XXH3's own, for who has no secret. */
static const byte SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
enum { STRIPE = 64, LANES = 8, STRIPES = 16, LONG = 240 };

static inline void add_stripe(uint64_t *lanes, const byte *at, const byte *secret) {
    for (int i = 0; i < LANES; i += 2) {
        uint64_t even = little8(at + 8 * i), odd = little8(at + 8 * i + 8);
        uint64_t a = even ^ little8(secret + 8 * i), b = odd ^ little8(secret + 8 * i + 8);
        lanes[i] += odd + (a & 0xFFFFFFFFu) * (a >> 32);
        lanes[i + 1] += even + (b & 0xFFFFFFFFu) * (b >> 32);
    }
}

/* Of more than LONG bytes; shorter ones have other rules. */
static uint64_t xxh3_long(const byte *from, int64_t size) {
    uint64_t lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const byte *at = from, *last = from + size - STRIPE, *end = SECRET + sizeof SECRET;
    for (; from + size - 1 - at >= STRIPE * STRIPES; at += STRIPE * STRIPES) {
        for (int i = 0; i < STRIPES; i++) add_stripe(lanes, at + STRIPE * i, SECRET + 8 * i);
        for (int i = 0; i < LANES; i++) lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ little8(end - STRIPE + 8 * i)) * PRIME32_1;
    }
    for (const byte *secret = SECRET; from + size - 1 - at >= STRIPE; at += STRIPE, secret += 8) add_stripe(lanes, at, secret);
    add_stripe(lanes, last, end - STRIPE - 7);
    uint64_t hash = (uint64_t)size * PRIME64_1;
    for (int i = 0; i < LANES; i += 2) {
        uint64_t a = lanes[i] ^ little8(SECRET + 11 + 8 * i), b = lanes[i + 1] ^ little8(SECRET + 19 + 8 * i);
        __uint128_t product = (__uint128_t)a * b;
        hash += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    hash = (hash ^ hash >> 37) * 0x165667919E3779F9u;
    return hash ^ hash >> 32;
}

/* Hold blocks of an SST against the XXH3 that stands behind each: 1 where it is right, 0 where it is wrong or the block too short
   to be told here.  How many are right; -1 where one lies outside.
   begin, size:  where each lies in `file`; behind it a byte of compression, which is covered too, and four of checksum */
int64_t check_blocks(const byte *file, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, byte *right) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!is_inside(total, begin[i], size[i]) || total - begin[i] - size[i] < 5) return -1;
        const byte *block = file + begin[i], *tail = block + size[i];
        right[i] = size[i] > LONG && ((uint32_t)xxh3_long(block, size[i]) ^ *tail * 0x6B9083D9u) == little4(tail + 1);
        found += right[i];
    }
    return found;
}
