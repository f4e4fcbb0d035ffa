/* Merges sorted runs of RocksDB's entries, and resolves deletes and merges, as `checkpoint/rocksdb/merge.py` describes it. */

#include <stdlib.h>

#include "native.h"

enum { DELETION = 0, VALUE = 1, MERGED = 2, SINGLE_DELETION = 7 };
enum { NOT_IN_ORDER = -1, ONE_SEQUENCE_NUMBER = -2, OUT_OF_BOUNDS = -3, UNKNOWN_KIND = -4 };

/* The rest of a run: entries `at` to `end` of a window's arrays. */
typedef struct {
    const byte *keys;
    int64_t keys_total;
    const int64_t *key_begin, *key_size;
    const uint64_t *tags;
    const byte *values;
    int64_t values_total;
    const int64_t *begin, *size;
    int64_t at, end;
} Run;

typedef struct {
    const byte *at;
    int64_t size;
} Piece;

static inline Piece key_of(const Run *run, int64_t i) { return (Piece){run->keys + run->key_begin[i], run->key_size[i]}; }

static inline int compare(Piece a, Piece b) {
    int64_t least = a.size < b.size ? a.size : b.size;
    int order = memcmp(a.at, b.at, (size_t)least);
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* Orders entries by key, the newest version of a key first. */
static inline int is_before(const Run *a, const Run *b) {
    int order = compare(key_of(a, a->at), key_of(b, b->at));
    return order < 0 || (order == 0 && a->tags[a->at] > b->tags[b->at]);
}

/* Restore a heap whose run at `place` may be too far up; the run with the first entry is at 0. */
static void sift_down(Run **heap, int64_t count, int64_t place) {
    Run *run = heap[place];
    for (;;) {
        int64_t least = 2 * place + 1;
        if (least >= count) break;
        if (least + 1 < count && is_before(heap[least + 1], heap[least])) least++;
        if (!is_before(heap[least], run)) break;
        heap[place] = heap[least];
        place = least;
    }
    heap[place] = run;
}

typedef struct {
    byte *keys, *values, *gone;
    int64_t *key_end, *end;
    int64_t rows, key_used, used;
} Out;

/* Write one row, whose value is the operands, given newest first.  A key without operands was deleted. */
static void write_row(Out *out, Piece key, const Piece *operands, int64_t count, const byte *delimiter, int64_t delimiter_size) {
    if (key.size < 0 || (!count && !out->gone)) return;
    if (out->gone) out->gone[out->rows] = !count;
    memcpy(out->keys + out->key_used, key.at, (size_t)key.size);
    out->key_used += key.size;
    for (int64_t i = count - 1; i >= 0; i--) {
        memcpy(out->values + out->used, operands[i].at, (size_t)operands[i].size);
        out->used += operands[i].size;
        if (i) {
            memcpy(out->values + out->used, delimiter, (size_t)delimiter_size);
            out->used += delimiter_size;
        }
    }
    out->key_end[out->rows] = out->key_used;
    out->end[out->rows++] = out->used;
}

/* Merge the entries of all runs to rows in key order, without deleted keys; the number of rows, or one of the negative numbers above.
   All versions of a key must be among the entries.
   room_for:      the bytes of `keys` and of `values`: room for all keys, and for all values with a delimiter each
   key_end, end:  output: where each row's key and value end; room for as many rows as there are entries
   gone:          output, or NULL: with it deleted keys stay, have an empty value, and are 1 here */
int64_t merge_runs(int64_t count, Run *runs, const byte *delimiter, int64_t delimiter_size, const int64_t *room_for, byte *keys,
                   int64_t *key_end, byte *values, int64_t *end, byte *gone) {
    int64_t key_room = room_for[0], value_room = room_for[1];
    for (int64_t r = 0; r < count; r++) {
        const Run *run = &runs[r];
        for (int64_t i = run->at; i < run->end; i++) {
            if (!is_inside(run->keys_total, run->key_begin[i], run->key_size[i])) return OUT_OF_BOUNDS;
            if (!is_inside(run->values_total, run->begin[i], run->size[i])) return OUT_OF_BOUNDS;
            key_room -= run->key_size[i];
            value_room -= run->size[i] + delimiter_size;
            if (key_room < 0 || value_room < 0) return OUT_OF_BOUNDS;
        }
    }
    Run **heap = malloc((size_t)(count + 1) * sizeof(Run *));
    if (!heap) return OUT_OF_BOUNDS;
    int64_t left = 0;
    for (int64_t r = 0; r < count; r++)
        if (runs[r].at < runs[r].end) heap[left++] = &runs[r];
    for (int64_t place = left / 2 - 1; place >= 0; place--) sift_down(heap, left, place);
    Out out = {keys, values, gone, key_end, end, 0, 0, 0};
    Piece key = {0, -1}, few[16] = {{0, 0}}, *operands = few;
    int64_t operand_count = 0, room = 16;
    uint64_t before = 0;
    int closed = 0, status = 0;
    while (left) {
        Run *first = heap[0], *second = left > 1 ? heap[1] : 0;
        if (left > 2 && is_before(heap[2], second)) second = heap[2];
        /* Take entries of the first run while they come before those of all others. */
        do {
            int64_t i = first->at;
            Piece next = key_of(first, i);
            uint64_t tag = first->tags[i];
            int order = key.size < 0 ? 1 : compare(next, key);
            if (order < 0) {
                status = NOT_IN_ORDER;
                goto done;
            }
            if (order > 0) {
                write_row(&out, key, operands, operand_count, delimiter, delimiter_size);
                key = next;
                operand_count = closed = 0;
            } else if (tag >> 8 >= before >> 8) {
                status = ONE_SEQUENCE_NUMBER;
                goto done;
            }
            before = tag;
            byte kind = (byte)tag;
            if (kind != VALUE && kind != MERGED && kind != DELETION && kind != SINGLE_DELETION) {
                status = UNKNOWN_KIND;
                goto done;
            }
            if (!closed && (kind == VALUE || kind == MERGED)) {
                if (operand_count == room) {
                    Piece *more = malloc(2 * (size_t)room * sizeof(Piece));
                    if (!more) {
                        status = OUT_OF_BOUNDS;
                        goto done;
                    }
                    memcpy(more, operands, (size_t)room * sizeof(Piece));
                    if (operands != few) free(operands);
                    operands = more;
                    room *= 2;
                }
                operands[operand_count++] = (Piece){first->values + first->begin[i], first->size[i]};
            }
            closed |= kind != MERGED;
            first->at++;
        } while (first->at < first->end && (!second || is_before(first, second)));
        if (first->at == first->end) heap[0] = heap[--left];
        sift_down(heap, left, 0);
    }
    write_row(&out, key, operands, operand_count, delimiter, delimiter_size);
done:
    if (operands != few) free(operands);
    free(heap);
    return status ? status : out.rows;
}

/* The place of the first key of a window that isn't below `key`. */
int64_t lower_bound(const byte *keys, const int64_t *key_begin, const int64_t *key_size, int64_t low, int64_t high, const byte *key,
                    int64_t size) {
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (compare((Piece){keys + key_begin[middle], key_size[middle]}, (Piece){key, size}) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
