/* Finds the newest entry of each key in sorted runs: the rows of `merge_runs.c`, without copying them. */

#include <stdlib.h>

#include "rows.h"

enum { DELETION = 0, VALUE = 1, SINGLE_DELETION = 7 };

/* Entries in key order, the newest version of a key first; the newest entries move to the front of the arrays.
   kept:  output: how many there are */
typedef struct {
    const byte *keys;
    int64_t keys_total, *key_begin, *key_size;
    const uint64_t *tags;
    const byte *values;
    int64_t values_total, *begin, *size;
    int64_t count, kept;
} Sorted;

static inline int compare(const byte *a, int64_t a_size, const byte *b, int64_t b_size) {
    int order = memcmp(a, b, (size_t)(a_size < b_size ? a_size : b_size));
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

/* Orders entries by key, the newest version of a key first. */
static inline int is_before(const Sorted *a, int64_t i, const Sorted *b, int64_t j) {
    int order = compare(a->keys + a->key_begin[i], a->key_size[i], b->keys + b->key_begin[j], b->key_size[j]);
    return order < 0 || (order == 0 && a->tags[i] > b->tags[j]);
}

/* The end of the entries of a run that come before an entry of another run: by growing steps, then by bisection.  If the run isn't
   in order the result is arbitrary; the caller then notices it. */
static int64_t end_before(const Sorted *run, int64_t at, const Sorted *other, int64_t bound) {
    int64_t step = 1, low = at, high;
    while (low + step < run->count && is_before(run, low + step, other, bound)) {
        low += step;
        step *= 2;
    }
    high = low + step < run->count ? low + step : run->count;
    for (low++; low < high;) {
        int64_t middle = low + (high - low) / 2;
        if (is_before(run, middle, other, bound))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The number of keys with a value; -1 if a run isn't in order, two versions of a key have one sequence number, an entry is neither a
   put nor a delete, a row is too short, or memory is short.  The arrays are invalid after -1.
   family, before:  as in newest_records.c */
int64_t newest_entries(int64_t count, Sorted *runs, const byte *family, int64_t family_size, const int64_t *before) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < runs[r].count; i++)
            if (!is_inside(runs[r].keys_total, runs[r].key_begin[i], runs[r].key_size[i])) return -1;
    int64_t *at = calloc((size_t)count + 1, sizeof(int64_t)), found = 0, status = -1;
    if (!at) return -1;
    const byte *last = 0;
    int64_t last_size = 0;
    uint64_t last_tag = 0;
    for (;;) {
        int64_t first = -1, second = -1;
        for (int64_t r = 0; r < count; r++) {
            if (at[r] == runs[r].count) continue;
            if (first < 0 || is_before(&runs[r], at[r], &runs[first], at[first])) {
                second = first;
                first = r;
            } else if (second < 0 || is_before(&runs[r], at[r], &runs[second], at[second])) {
                second = r;
            }
        }
        if (first < 0) break;
        Sorted *run = &runs[first];
        int64_t end = second < 0 ? run->count : end_before(run, at[first], &runs[second], at[second]);
        for (int64_t i = at[first]; i < end; i++) {
            const byte *key = run->keys + run->key_begin[i];
            int64_t size = run->key_size[i];
            int order = last ? compare(key, size, last, last_size) : 1;
            byte kind = (byte)run->tags[i];
            if (order < 0 || (order == 0 && run->tags[i] >> 8 >= last_tag >> 8)) goto done;
            if (kind != VALUE && kind != DELETION && kind != SINGLE_DELETION) goto done;
            last = key;
            last_size = size;
            last_tag = run->tags[i];
            if (order == 0 || kind != VALUE || size < family_size || memcmp(key, family, (size_t)family_size)) continue;
            int64_t key_begin = run->key_begin[i], begin = run->begin[i], value_size = run->size[i];
            if (!is_inside(run->values_total, begin, value_size)) goto done;
            if (!is_bare(run->keys, &key_begin, &size, before[0]) || !is_bare(run->values, &begin, &value_size, before[1])) goto done;
            run->key_begin[run->kept] = key_begin;
            run->key_size[run->kept] = size;
            run->begin[run->kept] = begin;
            run->size[run->kept++] = value_size;
            found++;
        }
        at[first] = end;
    }
    status = found;
done:
    free(at);
    return status;
}
