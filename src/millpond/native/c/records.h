/* One record of a change log or snapshot; the same as `checkpoint/files/records.py` finds. */

#ifndef MILLPOND_RECORDS_H
#define MILLPOND_RECORDS_H

#include "native.h"

enum { END = 0x00, PUT = 0x01, DELETE = 0x10, MERGE = 0x11 };

/* One record. */
typedef struct {
    int64_t key_begin, key_size, begin, size;
    byte kind;
} Record;

/* The end of the record that begins at `at`; -1 if there is none.  The end mark is a record of kind END. */
static inline int64_t next_record(const byte *data, int64_t total, int64_t at, int32_t typed, Record *found) {
    byte kind = PUT;
    if (typed) {
        if (at >= total) return -1;
        found->kind = kind = data[at++];
        if (kind == END) return at;
        if (kind != PUT && kind != DELETE && kind != MERGE) return -1;
    }
    if (total - at < 4) return -1;
    int64_t key = big4(data + at);
    at += 4;
    if (!typed && key == -1) {
        found->kind = END;
        return at;
    }
    if (key < 0 || key > total - at || total - at - key < 4) return -1;
    int64_t key_begin = at;
    at += key;
    int64_t value = big4(data + at);
    at += 4;
    if (value == -1 && !typed) kind = DELETE;
    if ((value == -1) != (kind == DELETE)) return -1;
    if (value == -1) value = 0;
    if (value < 0 || value > total - at) return -1;
    *found = (Record){key_begin, key, at, value, kind};
    return at + value;
}

#endif
