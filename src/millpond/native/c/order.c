/* Encodes key rows as a replica's ordered keys, as `replica/keys/transcode.py` does one by one. */

#include "native.h"

enum { WHOLE_NUMBER = 0, TEXT = 1, STRUCT = 2 };

/* A column of a row, or of a struct in a row.
   index, slot:  its null bit, and the offset of its eight bytes in the enclosing row
   width:        the bytes of a whole number, or the least bytes of a struct
   inside:       for a struct: how many of the columns after it are its members */
typedef struct {
    int64_t kind, index, slot, width, inside;
} Column;

/* Write columns one after the other; returns where they end, or NULL. */
static byte *write_columns(const Column *columns, int64_t count, const byte *row, int64_t size, int64_t base, byte *out,
                           const byte *out_end) {
    for (int64_t c = 0; c < count; c += 1 + columns[c].inside) {
        const Column *column = &columns[c];
        if (out_end - out < 16) return 0;
        if (row[base + (column->index >> 3)] & 1 << (column->index & 7)) {
            *out++ = 0;
            continue;
        }
        *out++ = 1;
        const byte *slot = row + base + column->slot;
        if (column->kind == WHOLE_NUMBER) {
            for (int64_t at = column->width - 1; at >= 0; at--) *out++ = slot[at];
            out[-column->width] ^= 0x80;
            continue;
        }
        int64_t length = little4(slot), begin = base + (int64_t)little4(slot + 4);
        if (!is_inside(size, begin, length)) return 0;
        if (column->kind == STRUCT) {
            if (length < column->width) return 0;
            out = write_columns(column + 1, column->inside, row, size, begin, out, out_end);
            if (!out) return 0;
            continue;
        }
        if (out_end - out < 2 * length + 2) return 0;
        for (int64_t at = begin; at < begin + length; at++) {
            *out++ = row[at];
            if (row[at] == 0) *out++ = 0xFF;
        }
        *out++ = 0;
        *out++ = 1;
    }
    return out;
}

/* Write the ordered keys of rows, one after the other; 0, or -1 if a row contradicts itself or the room is too small.
   least:  the least bytes of a row
   ends:   output: where each key ends in `out` */
int32_t order_keys(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, const Column *columns,
                   int64_t column_count, int64_t least, byte *out, int64_t room, int64_t *ends) {
    byte *at = out;
    for (int64_t i = 0; i < count; i++) {
        if (!is_inside(total, begin[i], size[i]) || size[i] < least) return -1;
        at = write_columns(columns, column_count, data + begin[i], size[i], 0, at, out + room);
        if (!at) return -1;
        ends[i] = at - out;
    }
    return 0;
}
