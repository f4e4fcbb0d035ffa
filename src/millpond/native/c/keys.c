/* Finds the last place of each key. */

#include <stdlib.h>

#include "hash.h"

enum { AHEAD = 32 };

/* Keys in one buffer. */
typedef struct {
    const byte *data;
    int64_t total;
    const int64_t *begin, *size;
    int64_t count;
    byte *newest;
} Keys;

static inline int is_equal(const Keys *a, int64_t i, const Keys *b, int64_t j) {
    return a->size[i] == b->size[j] && !memcmp(a->data + a->begin[i], b->data + b->begin[j], (size_t)a->size[i]);
}

/* Mark the last place of each key: 1 there, 0 at all other places.  Returns the number of keys; -1 if memory is short, or a key lies
   outside its buffer.
   unique:  whether all keys of the first part differ, so that the table needs none of them */
int64_t mark_newest(int64_t parts, Keys *all, int32_t unique, uint64_t seed) {
    int64_t total = 0, marked = 0;
    for (int64_t p = unique ? 1 : 0; p < parts; p++) total += all[p].count;
    if (total > UINT32_MAX - 1) return -1;
    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = 0; i < all[p].count; i++)
            if (!is_inside(all[p].total, all[p].begin[i], all[p].size[i])) return -1;
    uint64_t room = 16;
    while (room < 2 * (uint64_t)total) room *= 2;
    /* The upper half of the hash, and the number of the key's row among all parts, counted from 1. */
    uint64_t *table = calloc(room, sizeof(uint64_t));
    int64_t *first = malloc((size_t)(parts + 1) * sizeof(int64_t));
    if (!table || !first) {
        free(table);
        free(first);
        return -1;
    }
    first[0] = unique && parts ? -all[0].count : 0;
    for (int64_t p = 0; p < parts; p++) first[p + 1] = first[p] + all[p].count;
    for (int64_t p = parts - 1; p >= 0; p--) {
        const Keys *keys = &all[p];
        for (int64_t end = keys->count; end > 0; end -= AHEAD) {
            /* The table is larger than the processor's cache, so fetch the next slots ahead. */
            int64_t begin = end > AHEAD ? end - AHEAD : 0;
            uint64_t hashes[AHEAD];
            for (int64_t i = begin; i < end; i++) {
                hashes[i - begin] = hash(keys->data + keys->begin[i], keys->size[i], seed);
                __builtin_prefetch(&table[hashes[i - begin] & (room - 1)]);
            }
            for (int64_t i = end - 1; i >= begin; i--) {
                uint64_t hashed = hashes[i - begin], slot = hashed & (room - 1);
                int there = 0;
                for (; table[slot] && !there; slot = (slot + 1) & (room - 1)) {
                    if (table[slot] >> 32 != hashed >> 32) continue;
                    int64_t row = (int64_t)(table[slot] & UINT32_MAX) - 1, q = parts - 1;
                    while (row < first[q]) q--;
                    there = is_equal(&all[q], row - first[q], keys, i);
                }
                keys->newest[i] = (byte)!there;
                marked += !there;
                if (!there && !(unique && p == 0)) table[slot] = hashed >> 32 << 32 | (uint64_t)(first[p] + i + 1);
            }
        }
    }
    free(table);
    free(first);
    return marked;
}
