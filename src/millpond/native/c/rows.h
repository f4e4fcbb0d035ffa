/* What stands before a row. */

#ifndef MILLPOND_ROWS_H
#define MILLPOND_ROWS_H

#include "native.h"

/* Take off what stands before a row, whose last byte is 0; 0 where it isn't there. */
static inline int is_bare(const byte *data, int64_t *begin, int64_t *size, int64_t before) {
    if (!before) return 1;
    if (*size < before || data[*begin + before - 1]) return 0;
    *begin += before;
    *size -= before;
    return 1;
}

#endif
