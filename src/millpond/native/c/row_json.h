/* Rows of a replica, and where their JSON goes. */

#ifndef MILLPOND_ROW_JSON_H
#define MILLPOND_ROW_JSON_H

#include "native.h"
#include "python.h"

enum { NUMBER = 0, BOOLEAN = 1, TEXT = 2, FLOATING = 3, DISTINCT = 4, AVERAGE = 5 };
enum { ROOM = 4096 };
enum { STAMP_BYTES = 8, AT_MOST = 1, FINAL = 2 };

/* The tables of HyperLogLog++ for one precision, see `tables/finish/buffers/hllpp.py`.
   linear:  the linear estimate for each number of zero registers */
typedef struct {
    int64_t registers, neighbours, measured;
    double alpha_m2, threshold;
    const double *estimates, *biases, *linear;
} Sketch;

/* One member of the JSON object.
   kind, place:  its kind, and the place of its first column
   width:        the bytes of a number, the words of a sketch, or the place of an average's count
   name:         the member's name with the characters around it */
typedef struct {
    int64_t kind, place, width, name_size;
    const char *name;
    const Sketch *sketch;
} Member;

/* Where to write next, and the end of the room; `at` is NULL once there was no room, or a value that Python must write. */
typedef struct {
    char *at, *end;
} Out;

/* A stored row, whose bytes nobody has looked at.
   size:   without the stamp
   slots:  the first column */
typedef struct {
    const byte *bytes, *slots;
    int64_t size;
} Stored;

/* Whether a row has room for so many columns and its stamp. */
static inline int is_row(Stored *row, const byte *bytes, int64_t size, int64_t columns) {
    int64_t bitset = (columns + 63) / 64 * 8;
    *row = (Stored){bytes, bytes + bitset, size - STAMP_BYTES};
    return row->size >= bitset + 8 * columns;
}

static inline int is_null(const Stored *row, int64_t place) { return row->bytes[place >> 3] >> (place & 7) & 1; }

static inline double floating(const byte *slot, int64_t width) {
    double value;
    float narrow;
    if (width == 4) {
        memcpy(&narrow, slot, 4);
        return narrow;
    }
    memcpy(&value, slot, 8);
    return value;
}

static inline int64_t number(const byte *slot, int64_t width) {
    int unused = 64 - 8 * (int)width;
    return (int64_t)(little8(slot) << unused) >> unused;
}

/* Where a text lies in its row; 0 if it reaches beyond it. */
static inline int is_text(const Stored *row, const byte *slot, int64_t *begin, int64_t *size) {
    *begin = (int64_t)little4(slot + 4);
    *size = (int64_t)little4(slot);
    return is_inside(row->size, *begin, *size);
}

/* Whether a member's value is NULL.
   count:  output: the number of values in an average, 1 for other kinds */
static inline int is_nothing(const Stored *row, const Member *member, int64_t *count) {
    *count = 1;
    if (member->kind == DISTINCT) return 0;
    if (member->kind == AVERAGE) *count = is_null(row, member->width) ? 0 : (int64_t)little8(row->slots + 8 * member->width);
    return is_null(row, member->place) || !*count;
}

void put(Out *out, const char *text, int64_t size);
void put_number(Out *out, int64_t value);
void put_text(Out *out, const byte *text, int64_t size);
int distinct(const Stored *row, const Member *member, int64_t *value);
void put_members(Out *out, const Stored *row, const Member *members, int64_t count);
void put_facts(Out *out, const Stored *row);

#endif
