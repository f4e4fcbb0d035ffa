/* Keys of one column as `replica/keys/codec.py` encodes them, from texts and numbers of requests. */

#ifndef MILLPOND_LOOKUP_KEY_H
#define MILLPOND_LOOKUP_KEY_H

#include "native.h"

enum { LONGEST_KEY = 510 };
enum { KEY_TEXT = 0 };
enum { SPACES = 1, PERCENTS = 2 };

/* A key and its form in the replica.
   text, text_size:  of a text */
typedef struct {
    byte coded[LONGEST_KEY + 2];
    int64_t size, number, text_size;
    const byte *text;
} Key;

static inline int text_key(Key *key, const byte *text, int64_t size) {
    int64_t at = 0;
    key->text = text;
    key->text_size = size;
    if (size > LONGEST_KEY - 3) return 0;
    key->coded[at++] = 1;
    for (int64_t i = 0; i < size; i++) {
        if (at > LONGEST_KEY - 4) return 0;
        key->coded[at++] = text[i];
        if (!text[i]) key->coded[at++] = 0xFF;
    }
    key->coded[at++] = 0;
    key->coded[at++] = 1;
    key->size = at;
    return 1;
}

static inline int number_key(Key *key, int64_t value, int64_t width) {
    int bits = 8 * (int)width;
    if (width < 8 && (value >= (int64_t)1 << (bits - 1) || value < -((int64_t)1 << (bits - 1)))) return 0;
    uint64_t shifted = (uint64_t)value + ((uint64_t)1 << (bits - 1));
    key->coded[0] = 1;
    for (int i = 0; i < (int)width; i++) key->coded[1 + i] = (byte)(shifted >> (bits - 8 - 8 * i));
    key->size = 1 + width;
    key->number = value;
    return 1;
}

/* A whole number as `schema/values.py` reads one, if it has few digits beside leading zeros. */
static inline int read_number(const byte *text, int64_t size, int64_t *value) {
    int is_negative = size > 0 && text[0] == '-';
    const byte *digit = text + (is_negative || (size > 0 && text[0] == '+')), *end = text + size;
    if (digit == end || end - digit > 40) return 0;
    while (digit < end && *digit == '0') digit++;
    if (end - digit > 18) return 0;
    int64_t found = 0;
    for (; digit < end; digit++) {
        if (*digit < '0' || *digit > '9') return 0;
        found = 10 * found + (*digit - '0');
    }
    *value = is_negative ? -found : found;
    return 1;
}

static inline int hex(byte c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* A text of a URL, as `unquote_to_bytes`; returns its size.  The room has as many bytes as the text. */
static inline int64_t unquoted(byte *room, const byte *text, int64_t size, int how) {
    int64_t at = 0;
    for (int64_t i = 0; i < size; i++) {
        byte c = text[i];
        if (c == '+' && how & SPACES) {
            c = ' ';
        } else if (c == '%' && how & PERCENTS && size - i > 2 && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
            c = (byte)(hex(text[i + 1]) << 4 | hex(text[i + 2]));
            i += 2;
        }
        room[at++] = c;
    }
    return at;
}

#endif
