/* A hash of 64 bits for a key. */

#ifndef MILLPOND_HASH_H
#define MILLPOND_HASH_H

#include "native.h"

static inline uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The seed differs between processes, so that nobody can choose keys with equal hashes. */
static inline uint64_t hash(const byte *at, int64_t size, uint64_t seed) {
    uint64_t found = seed ^ (uint64_t)size * 0x9E3779B97F4A7C15u, word;
    for (; size >= 8; size -= 8, at += 8) {
        memcpy(&word, at, 8);
        found = mix(found ^ word, 0xA0761D6478BD642Fu ^ seed);
    }
    if (size) {
        word = 0;
        memcpy(&word, at, (size_t)size);
        found = mix(found ^ word, 0xE7037ED1A0B428DBu ^ seed);
    }
    return mix(found, 0x8EBC6AF09C88C6E3u);
}

#endif
