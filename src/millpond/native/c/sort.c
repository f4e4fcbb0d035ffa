/* Sorts keys, and keeps the last of equal ones. */

#include <stdlib.h>

#include "native.h"

/* The row of a key; front: its eight bytes after the bytes that all keys share, as a number. */
typedef struct {
    uint64_t front;
    int64_t row;
} Sorted;

/* The keys, and how many first bytes all of them share. */
typedef struct {
    const byte *data;
    const int64_t *begin, *size;
    int64_t shared;
} Keys;

static uint64_t front_of(const Keys *keys, int64_t row) {
    const byte *at = keys->data + keys->begin[row] + keys->shared;
    int64_t left = keys->size[row] - keys->shared;
    uint64_t front = 0;
    for (int64_t i = 0; i < 8; i++) front = front << 8 | (i < left ? at[i] : 0);
    return front;
}

static inline int compare(const Keys *keys, const Sorted *a, const Sorted *b) {
    if (a->front != b->front) return a->front < b->front ? -1 : 1;
    int64_t a_size = keys->size[a->row], b_size = keys->size[b->row], least = a_size < b_size ? a_size : b_size;
    int64_t from = keys->shared;
    int order = memcmp(keys->data + keys->begin[a->row] + from, keys->data + keys->begin[b->row] + from, (size_t)(least - from));
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static int64_t shared_bytes(const byte *data, int64_t count, const int64_t *begin, const int64_t *size) {
    int64_t shared = count ? size[0] : 0;
    for (int64_t i = 1; i < count && shared; i++) {
        if (size[i] < shared) shared = size[i];
        const byte *first = data + begin[0], *other = data + begin[i];
        if (!memcmp(first, other, (size_t)shared)) continue;
        int64_t same = 0;
        while (first[same] == other[same]) same++;
        shared = same;
    }
    return shared;
}

/* Find the rows of keys in the order of their bytes; of equal keys, only the last row.  Returns how many; -1 if memory is short or a
   key lies outside its buffer.
   order:  output: room for as many rows as keys */
int64_t sort_newest(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, int64_t *order) {
    for (int64_t i = 0; i < count; i++)
        if (!is_inside(total, begin[i], size[i])) return -1;
    Sorted *memory = malloc(2 * (size_t)(count + 1) * sizeof(Sorted)), *from = memory, *to = memory + count;
    if (!memory) return -1;
    Keys keys = {data, begin, size, shared_bytes(data, count, begin, size)};
    for (int64_t i = 0; i < count; i++) from[i] = (Sorted){front_of(&keys, i), i};
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t first = 0; first < count; first += 2 * width) {
            int64_t middle = first + width < count ? first + width : count;
            int64_t end = first + 2 * width < count ? first + 2 * width : count;
            if (middle == end || compare(&keys, &from[middle - 1], &from[middle]) <= 0) {
                memcpy(to + first, from + first, (size_t)(end - first) * sizeof(Sorted));
                continue;
            }
            /* Equal keys stay in the order of their rows. */
            int64_t a = first, b = middle, out = first;
            while (a < middle && b < end) to[out++] = compare(&keys, &from[a], &from[b]) <= 0 ? from[a++] : from[b++];
            while (a < middle) to[out++] = from[a++];
            while (b < end) to[out++] = from[b++];
        }
        Sorted *sorted = to;
        to = from;
        from = sorted;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (i + 1 == count || compare(&keys, &from[i], &from[i + 1])) order[kept++] = from[i].row;
    free(memory);
    return kept;
}
