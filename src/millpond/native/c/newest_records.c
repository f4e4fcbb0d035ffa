/* Finds the last record of each key in all files of a partition, in one pass. */

#include "hash.h"
#include "records.h"
#include "rows.h"

enum { AHEAD = 32, ROOM = -2 };

/* A file in the buffer.
   start, end:  where its records begin, and where it ends
   typed:       whether each of them begins with its type */
typedef struct {
    int64_t start, end, typed;
} File;

/* The rows so far, and a hash table of their numbers, counted from 1, with bits of the hash above. */
typedef struct {
    const byte *data;
    int64_t count, *key_begin, *key_size, *begin, *size;
    uint32_t *table, mask, tags;
} Rows;

/* The row of a key; -1 if it has none, and in `slot` its place in the table. */
static inline int64_t find_row(const Rows *rows, uint64_t hashed, const Record *record, uint32_t *slot) {
    uint32_t tag = (uint32_t)(hashed >> 32) & rows->tags, at = (uint32_t)hashed & rows->mask;
    for (; rows->table[at]; at = (at + 1) & rows->mask) {
        if ((rows->table[at] & rows->tags) != tag) continue;
        int64_t row = (int64_t)(rows->table[at] & ~rows->tags) - 1;
        if (rows->key_size[row] == record->key_size &&
            !memcmp(rows->data + rows->key_begin[row], rows->data + record->key_begin, (size_t)record->key_size))
            return row;
    }
    *slot = at;
    return -1;
}

/* The number of rows; ROOM if there are more than `capacity`; -1 if a file is damaged, or has a record that is neither a put nor a
   delete.
   files:         oldest first
   family:        the first bytes of the store's keys; other keys are ignored
   before:        the number of bytes before each bare key (including the family), and before each bare value
   table, room:   a hash table of so many numbers: a power of two, greater than `capacity`
   key_begin, …:  output: room for `capacity` rows */
int64_t newest_records(const byte *data, int64_t total, int64_t count, const File *files, const byte *family, int64_t family_size,
                       const int64_t *before, uint64_t seed, uint32_t *table, int64_t room, int64_t capacity, int64_t *key_begin,
                       int64_t *key_size, int64_t *begin, int64_t *size) {
    if (capacity < 0 || room <= capacity || room > INT32_MAX || (room & (room - 1))) return -1;
    uint32_t numbers = 1;
    while (numbers <= (uint32_t)capacity) numbers *= 2; /* a row's number is smaller */
    memset(table, 0, (size_t)room * sizeof(uint32_t));
    Rows rows = {data, 0, key_begin, key_size, begin, size, table, (uint32_t)room - 1, ~(numbers - 1)};
    int64_t gone = 0;
    for (int64_t f = 0; f < count; f++) {
        int64_t at = files[f].start, end = files[f].end;
        if (at < 0 || at > end || end > total) return -1;
        for (int ended = 0; !ended;) {
            Record records[AHEAD];
            uint64_t hashes[AHEAD];
            int64_t found = 0;
            /* The table is larger than the processor's cache, so fetch the next slots ahead. */
            while (found < AHEAD && !ended) {
                Record *record = &records[found];
                at = next_record(data, end, at, (int32_t)files[f].typed, record);
                if (at < 0) return -1;
                if (record->kind == END) {
                    if (at != end) return -1;
                    ended = 1;
                    continue;
                }
                if (record->key_size < family_size || memcmp(data + record->key_begin, family, (size_t)family_size)) continue;
                if (record->kind != PUT && record->kind != DELETE) return -1;
                if (!is_bare(data, &record->key_begin, &record->key_size, before[0])) return -1;
                if (record->kind == PUT && !is_bare(data, &record->begin, &record->size, before[1])) return -1;
                hashes[found] = hash(data + record->key_begin, record->key_size, seed);
                __builtin_prefetch(&table[(uint32_t)hashes[found] & rows.mask]);
                found++;
            }
            for (int64_t i = 0; i < found; i++) {
                const Record *record = &records[i];
                uint32_t slot = 0;
                int64_t row = find_row(&rows, hashes[i], record, &slot);
                if (row < 0) {
                    if (record->kind == DELETE) continue;
                    if (rows.count == capacity) return ROOM;
                    row = rows.count++;
                    key_begin[row] = record->key_begin;
                    key_size[row] = record->key_size;
                    table[slot] = ((uint32_t)(hashes[i] >> 32) & rows.tags) | (uint32_t)(row + 1);
                    gone++;
                    size[row] = -1;
                }
                gone += (record->kind == DELETE) - (size[row] < 0);
                begin[row] = record->begin;
                size[row] = record->kind == DELETE ? -1 : record->size;
            }
        }
    }
    if (gone) {
        int64_t kept = 0;
        for (int64_t row = 0; row < rows.count; row++) {
            key_begin[kept] = key_begin[row];
            key_size[kept] = key_size[row];
            begin[kept] = begin[row];
            size[kept] = size[row];
            kept += size[row] >= 0;
        }
        rows.count = kept;
    }
    return rows.count;
}
