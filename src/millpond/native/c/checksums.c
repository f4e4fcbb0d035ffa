/* XXH32 of xxHash 0.8: the checksum of Spark's LZ4 blocks. */

#include "native.h"

static const uint32_t PRIME32_1 = 0x9E3779B1u, PRIME32_2 = 0x85EBCA77u, PRIME32_3 = 0xC2B2AE3Du, PRIME32_4 = 0x27D4EB2Fu,
                      PRIME32_5 = 0x165667B1u;

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
