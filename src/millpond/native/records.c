/* Where the records of a change log or snapshot lie; the same ones as `checkpoint/records.py` gives one by one. */

#include "native.h"

enum { END = 0x00, PUT = 0x01, DELETE = 0x10, MERGE = 0x11, DELETE_RANGE = 0x20 };

/* How many records there are from `at` to the end mark, with which the file must end; -1 where that isn't so.
   typed:     whether each begins with its type
   capacity:  how many may be written to the arrays; the others are only counted */
int64_t find_records(const byte *data, int64_t total, int64_t at, int32_t typed, int64_t capacity, byte *kinds, int64_t *key_begin,
                     int64_t *key_size, int64_t *begin, int64_t *size) {
    if (at < 0 || at > total) return -1;
    for (int64_t count = 0;; count++) {
        byte kind = PUT;
        if (typed) {
            if (at >= total) return -1;
            kind = data[at++];
            if (kind == END) return at == total ? count : -1;
            if (kind != PUT && kind != DELETE && kind != MERGE && kind != DELETE_RANGE) return -1;
        }
        if (total - at < 4) return -1;
        int64_t key = big4(data + at);
        at += 4;
        if (!typed && key == -1) return at == total ? count : -1;
        if (key < 0 || key > total - at || total - at - key < 4) return -1;
        int64_t key_at = at;
        at += key;
        int64_t value = big4(data + at);
        at += 4;
        if (value == -1 && !typed) kind = DELETE;
        if ((value == -1) != (kind == DELETE)) return -1;
        if (value == -1) value = 0;
        if (value < 0 || value > total - at) return -1;
        if (count < capacity) {
            kinds[count] = kind;
            key_begin[count] = key_at;
            key_size[count] = key;
            begin[count] = at;
            size[count] = value;
        }
        at += value;
    }
}
