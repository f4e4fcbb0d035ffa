/* The bytes before a row. */

#ifndef MILLPOND_ROWS_H
#define MILLPOND_ROWS_H

#include "native.h"

/* Remove the bytes before a row, of which the last must be 0; returns 0 if it isn't. */
static inline int is_bare(const byte *data, int64_t *begin, int64_t *size, int64_t before) {
    if (!before) return 1;
    if (*size < before || data[*begin + before - 1]) return 0;
    *begin += before;
    *size -= before;
    return 1;
}

#endif
