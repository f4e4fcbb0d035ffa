/* The elements of list values: (int32 size, 00 row)* with a delimiter between, as `checkpoint/encoding.py` describes them. */

#include "native.h"

/* The number of elements of all values; -1 if one isn't such a list.  Call it twice: first without arrays, to count.
   counts:  output: the number of elements of each value
   element_begin, element_size:  output: the rows without the bytes before them */
int64_t find_elements(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size,
                      const byte *delimiter, int64_t delimiter_size, int64_t *counts, int64_t *element_begin,
                      int64_t *element_size) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!is_inside(total, begin[i], size[i])) return -1;
        int64_t at = begin[i], end = begin[i] + size[i], before = found;
        for (;;) {
            if (end - at < 4) return -1;
            int64_t element = (int32_t)little4(data + at);
            at += 4;
            if (element < 1 || element > end - at || data[at] != 0) return -1;
            if (element_begin) {
                element_begin[found] = at + 1;
                element_size[found] = element - 1;
            }
            found++;
            at += element;
            if (at == end) break;
            if (delimiter_size > end - at || memcmp(data + at, delimiter, (size_t)delimiter_size)) return -1;
            at += delimiter_size;
        }
        counts[i] = found - before;
    }
    return found;
}
