/* Reads slots of UnsafeRows: the null bits in words of eight bytes, then eight bytes for each column. */

#include "native.h"

/* Read the words at these places of every row, in one pass; 0, or -1 if a row is shorter than `least` words.
   places:  in words from the beginning of a row
   flags:   for so many first places, only find the bits that some row has
   any:     output: these bits
   out:     output: an array of `count` words for each other place, one after the other */
int32_t read_words(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, int64_t least,
                   int64_t words, const int64_t *places, int64_t flags, uint64_t *any, uint64_t *out) {
    for (int64_t w = 0; w < words; w++) {
        if (places[w] < 0 || places[w] > INT32_MAX) return -1;
        if (places[w] >= least) least = places[w] + 1;
        any[w] = 0;
    }
    for (int64_t i = 0; i < count; i++) {
        if (!is_inside(total, begin[i], size[i]) || size[i] < 8 * least) return -1;
        const byte *row = data + begin[i];
        for (int64_t w = 0; w < flags; w++) any[w] |= little8(row + 8 * places[w]);
        for (int64_t w = flags; w < words; w++) out[(w - flags) * count + i] = little8(row + 8 * places[w]);
    }
    return 0;
}

/* Find the values that slots point to.  A slot is half a word of size, then half a word of offset in its row.  0, or -1 if a value
   reaches beyond its row.
   size:   the bytes of each row
   valid:  0 for a row without a value, whatever its slot says; NULL if all rows have one */
int32_t find_parts(int64_t count, const int64_t *begin, const int64_t *size, const uint64_t *slots, const byte *valid, int64_t *part,
                   int64_t *part_size) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t slot = valid && !valid[i] ? 0 : slots[i];
        int64_t offset = (int64_t)(slot >> 32), bytes = (int64_t)(slot & UINT32_MAX);
        if (offset + bytes > size[i]) return -1;
        part[i] = begin[i] + offset;
        part_size[i] = bytes;
    }
    return 0;
}
