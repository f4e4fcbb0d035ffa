/* Slots of UnsafeRows: the null bits in words of eight bytes, then eight bytes for each column. */

#include "native.h"

/* Take the words at these places of every row, all from one pass; 0, or -1 where a row hasn't got them.
   places:  counted in words from the begin of a row
   out:     an array of `count` words for each place, one after the other */
int32_t read_words(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *end, int64_t words,
                   const int64_t *places, uint64_t *out) {
    int64_t most = 0;
    for (int64_t w = 0; w < words; w++) {
        if (places[w] < 0 || places[w] > INT32_MAX) return -1;
        if (places[w] >= most) most = places[w] + 1;
    }
    for (int64_t i = 0; i < count; i++) {
        if (begin[i] < 0 || end[i] > total || end[i] - begin[i] < 8 * most) return -1;
        for (int64_t w = 0; w < words; w++) out[w * count + i] = little8(data + begin[i] + 8 * places[w]);
    }
    return 0;
}
