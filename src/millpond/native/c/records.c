/* Finds the records of a change log or snapshot: the same as `checkpoint/files/records.py` finds one by one. */

#include "records.h"

/* The number of records from `at` to the end mark, which must end the file; -1 if the file is damaged.
   typed:     whether each begins with its type
   capacity:  the room of the arrays, at which this stops; 0 to count only */
int64_t find_records(const byte *data, int64_t total, int64_t at, int32_t typed, int64_t capacity, byte *kinds, int64_t *key_begin,
                     int64_t *key_size, int64_t *begin, int64_t *size) {
    if (at < 0 || at > total) return -1;
    for (int64_t count = 0;; count++) {
        if (capacity && count == capacity) return count;
        Record record;
        at = next_record(data, total, at, typed, &record);
        if (at < 0) return -1;
        if (record.kind == END) return at == total ? count : -1;
        if (capacity) {
            kinds[count] = record.kind;
            key_begin[count] = record.key_begin;
            key_size[count] = record.key_size;
            begin[count] = record.begin;
            size[count] = record.size;
        }
    }
}

/* The number of whole records before the end mark, damage, or the end of the bytes.
   end:  output: where the last record ends */
int64_t find_whole_records(const byte *data, int64_t total, int32_t typed, int64_t *end) {
    int64_t at = 0, count = 0;
    for (;;) {
        Record record;
        int64_t next = next_record(data, total, at, typed, &record);
        if (next < 0 || record.kind == END) break;
        at = next;
        count++;
    }
    *end = at;
    return count;
}

/* The kind of the last record of a key, 0 if it has none, and its value; -1 if the file is damaged, or has a record that is neither a
   put nor a delete. */
int32_t find_last(const byte *data, int64_t total, int64_t at, int32_t typed, const byte *key, int64_t size, int64_t *value) {
    int32_t kind = 0;
    if (at < 0 || at > total) return -1;
    for (;;) {
        Record record;
        at = next_record(data, total, at, typed, &record);
        if (at < 0) return -1;
        if (record.kind == END) return at == total ? kind : -1;
        if (record.kind != PUT && record.kind != DELETE) return -1;
        if (record.key_size == size && !memcmp(data + record.key_begin, key, (size_t)size)) {
            kind = record.kind;
            value[0] = record.begin;
            value[1] = record.size;
        }
    }
}
