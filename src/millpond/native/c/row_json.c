/* Writes one row of an answer as JSON, as `serve/hot/row_json.py` does without this library. */

#include "row_json.h"

/* JavaScript's numbers are exact below this. */
#define EXACT_IN_JSON ((int64_t)1 << 53)
#define REGISTERS_PER_WORD 10

void put(Out *out, const char *text, int64_t size) {
    if (!out->at || size > out->end - out->at) {
        out->at = 0;
        return;
    }
    memcpy(out->at, text, (size_t)size);
    out->at += size;
}

static void put_digits(Out *out, int64_t value, int is_quoted) {
    char digits[24], *first = digits + sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (is_quoted) *--first = '"';
    do *--first = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0) *--first = '-';
    if (is_quoted) *--first = '"';
    put(out, first, digits + sizeof digits - first);
}

void put_number(Out *out, int64_t value) { put_digits(out, value, value >= EXACT_IN_JSON || value <= -EXACT_IN_JSON); }

/* Python writes numbers outside this range, whose form depends on the number. */
static void put_floating(Out *out, double value) {
    double size = value < 0 ? -value : value;
    if (!(size == 0 || (size >= 1e-4 && size < 1e15))) {
        out->at = 0;
        return;
    }
    char *text = PyOS_double_to_string(value, 'r', 0, ADD_DOT_0, 0);
    if (!text) {
        out->at = 0;
        return;
    }
    put(out, text, (int64_t)strlen(text));
    PyMem_Free(text);
}

/* The bytes of the character that begins here; 0 if it isn't UTF-8. */
static int64_t character(const byte *at, int64_t left) {
    byte first = at[0];
    int64_t more = first < 0xC2 ? -1 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : first < 0xF5 ? 3 : -1;
    if (more < 0 || more >= left) return 0;
    byte low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80, high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (at[1] < low || at[1] > high) return 0;
    for (int64_t i = 2; i <= more; i++)
        if (at[i] < 0x80 || at[i] > 0xBF) return 0;
    return 1 + more;
}

void put_text(Out *out, const byte *text, int64_t size) {
    static const char hex[] = "0123456789abcdef", named[] = "btn\0fr"; /* from 8 on */
    put(out, "\"", 1);
    int64_t plain = 0, at = 0;
    while (at < size) {
        byte c = text[at];
        if (c >= 0x80) {
            int64_t bytes = character(text + at, size - at);
            if (!bytes) {
                out->at = 0;
                return;
            }
            at += bytes;
            continue;
        }
        if (c >= 0x20 && c != '"' && c != '\\') {
            at++;
            continue;
        }
        put(out, (const char *)text + plain, at - plain);
        if (c >= 0x20)
            put(out, (char[]){'\\', (char)c}, 2);
        else if (c >= 8 && c <= 13 && c != 11)
            put(out, (char[]){'\\', named[c - 8]}, 2);
        else
            put(out, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
        plain = ++at;
    }
    put(out, (const char *)text + plain, size - plain);
    put(out, "\"", 1);
}

/* The bias of an estimate: the mean of those measured nearest to it. */
static double bias(const Sketch *sketch, double estimate) {
    int64_t low = 0, high = sketch->measured;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (sketch->estimates[middle] < estimate) low = middle + 1;
        else high = middle;
    }
    low = low - sketch->neighbours + 1 > 0 ? low - sketch->neighbours + 1 : 0;
    high = low + sketch->neighbours < sketch->measured ? low + sketch->neighbours : sketch->measured;
    while (high < sketch->measured) {
        double above = estimate - sketch->estimates[high], below = estimate - sketch->estimates[low];
        if (above * above >= below * below) break;
        low++;
        high++;
    }
    double total = 0;
    for (int64_t i = low; i < high; i++) total += sketch->biases[i];
    return total / (double)(high - low);
}

static double estimated(const Sketch *sketch, const byte *words, int64_t count) {
    /* The last word may have more registers than the sketch; these are zero and don't count. */
    int64_t zeros = sketch->registers - count * REGISTERS_PER_WORD;
    double inverses = (double)zeros;
    for (int64_t w = 0; w < count; w++) {
        uint64_t word = little8(words + 8 * w);
        if (!word) {
            zeros += REGISTERS_PER_WORD;
            inverses += REGISTERS_PER_WORD;
            continue;
        }
        for (int i = 0; i < REGISTERS_PER_WORD; i++, word >>= 6) {
            inverses += 1.0 / (double)((uint64_t)1 << (word & 63));
            zeros += !(word & 63);
        }
    }
    double registers = (double)sketch->registers, raw = sketch->alpha_m2 / inverses;
    if (zeros > 0 && (sketch->linear[zeros] <= sketch->threshold || raw <= 2.5 * registers)) return sketch->linear[zeros];
    return sketch->measured && raw < 5.0 * registers ? raw - bias(sketch, raw) : raw;
}

/* The estimate of a sketch; 0 if a word of it is NULL, which Python must refuse. */
int distinct(const Stored *row, const Member *member, int64_t *value) {
    for (int64_t i = 0; i < member->width; i++)
        if (is_null(row, member->place + i)) return 0;
    double found = estimated(member->sketch, row->slots + 8 * member->place, member->width);
    int64_t whole = (int64_t)found;
    if (found < (double)whole) whole--;
    *value = whole + (found - (double)whole >= 0.5);
    return 1;
}

static void put_member(Out *out, const Member *member, const Stored *row) {
    put(out, member->name, member->name_size);
    const byte *slot = row->slots + 8 * member->place;
    int64_t count, begin, size, value;
    if (is_nothing(row, member, &count)) {
        put(out, "null", 4);
    } else if (member->kind == DISTINCT) {
        if (distinct(row, member, &value)) put_number(out, value);
        else out->at = 0;
    } else if (member->kind == NUMBER) {
        put_number(out, number(slot, member->width));
    } else if (member->kind == BOOLEAN) {
        put(out, slot[0] ? "true" : "false", slot[0] ? 4 : 5);
    } else if (member->kind == TEXT) {
        if (is_text(row, slot, &begin, &size)) put_text(out, row->bytes + begin, size);
        else out->at = 0;
    } else if (member->kind == FLOATING) {
        put_floating(out, floating(slot, member->width));
    } else {
        put_floating(out, floating(slot, 8) / (double)count);
    }
}

void put_members(Out *out, const Stored *row, const Member *members, int64_t count) {
    for (int64_t i = 0; i < count && out->at; i++) put_member(out, &members[i], row);
    put(out, "}", 1);
}

/* What follows a row: which batch changed it, and whether it is final. */
void put_facts(Out *out, const Stored *row) {
    uint64_t stamp = little8(row->bytes + row->size);
    put(out, "],\"changed\":[", 13);
    if (stamp & AT_MOST) put(out, "null", 4);
    else put_digits(out, (int64_t)(stamp >> 2), 0);
    put(out, stamp & FINAL ? "],\"final\":[0]" : "],\"final\":[]", stamp & FINAL ? 13 : 12);
}

/* A row as Python's bytes, followed by its facts: {…}],"changed":[batch],"final":[0]; None if Python must write it.
   bytes:    a stored row of a replica, with its stamp (`replica/row_stamp.py`)
   head:     the text before the first member, or before the key
   key:      the key if it is one text; its size is negative if the head includes the key */
PyObject *row_json(const byte *bytes, int64_t size, int64_t columns, const Member *members, int64_t count, const char *head,
                   int64_t head_size, const byte *key, int64_t key_size) {
    char room[ROOM];
    Out out = {room, room + ROOM};
    Stored row;
    if (!is_row(&row, bytes, size, columns)) return Py_BuildValue("");
    put(&out, head, head_size);
    if (key_size >= 0) put_text(&out, key, key_size);
    put_members(&out, &row, members, count);
    put_facts(&out, &row);
    return out.at ? PyBytes_FromStringAndSize(room, out.at - room) : Py_BuildValue("");
}
