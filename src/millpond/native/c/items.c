/* Merges sketches of frequent items, and finds the most frequent ones, as `tables/finish/buffers/items.py` does without this library: the same
   bytes, so the same hash table, slot by slot.

   Java hashes an item slowly, and its iterator has an order of its own.  Both matter only to items that are new to a union: where they
   lie in its table, and which others are dropped when it is full.  So items are first looked up by another hash. */

#include <stdlib.h>

#include "hash.h"

/* How the items of a sketch are written: 4 bytes of size and UTF-8; 8 bytes; or a byte that says which number follows. */
enum { TEXT = 0, LONG = 1, DOUBLE = 2, BYTE = 3, SHORT = 4, INTEGER = 5, FLOAT = 6 };
enum { HEADER = 8, COUNTS = 24, NULLS = 8, FAMILY = 10, EMPTY = 5, LEAST_LG = 3, MOST_LG = 21, SAMPLE = 1024, AHEAD = 8 };
static const int64_t MOST_SEEN = (int64_t)1 << 50, MOST_SUM = (int64_t)1 << 60;
static const double GOLDEN = 0.6180339887498948;
static const uint32_t NONE = UINT32_MAX;
static const byte TAGS[] = {0, 0, 0, 2, 3, 9, 6};
static const byte SIZES[] = {0, 8, 8, 1, 2, 4, 4};

/* An item of a sketch.
   at:     its bytes, as they are written
   head:   the first eight of them
   tail:   the last eight, if there are more than eight
   hash:   of these bytes
   mixed:  the lower half of Java's hash of the item, mixed: no table has more slots */
typedef struct {
    const byte *at;
    uint64_t head, tail, hash;
    int64_t count;
    uint32_t size, mixed;
} Item;

/* A sketch as it is stored.
   items:  in the order of their bytes, without `mixed` */
typedef struct {
    int64_t lg_most, lg_now, count, seen, offset, nulls;
    Item *items;
} Stored;

/* A union of sketches.
   items:  in no order
   slots:  Java's table of 1 << lg slots: the places of items, counted from 1; 0 if a slot is free
   index:  a table of 2 << lg slots by `hash`: its upper half, and the item's place, counted from 1 */
typedef struct {
    int64_t lg_most, lg, count, seen, offset, nulls;
    Item *items;
    uint32_t *slots;
    uint64_t *index;
} Union;

static inline int64_t room_of(int64_t lg) { return ((int64_t)1 << lg) / 4 * 3; }

/* Java's hash of a text, which is that of its UTF-16; -1 if it isn't UTF-8. */
static int64_t hash_text(const byte *at, int64_t size) {
    uint32_t found = 0;
    const byte *end = at + size;
    while (at < end) {
        /* Four at a time, as long as they are ASCII. */
        for (; end - at >= 4 && !(little4(at) & 0x80808080u); at += 4)
            found = 923521 * found + 29791 * at[0] + 961 * at[1] + 31 * at[2] + at[3];
        if (at == end) break;
        uint32_t c = *at++;
        if (c >= 0x80) {
            int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
            if (c < 0xC2 || c > 0xF4 || end - at < more) return -1;
            uint32_t least = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
            c &= more == 3 ? 0x07 : more == 2 ? 0x0F : 0x1F;
            for (int i = 0; i < more; i++, at++) {
                if ((*at & 0xC0) != 0x80) return -1;
                c = c << 6 | (*at & 0x3F);
            }
            if (c < least || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return -1;
            if (c >= 0x10000) {
                found = 31 * found + (0xD800 + ((c - 0x10000) >> 10));
                c = 0xDC00 + ((c - 0x10000) & 0x3FF);
            }
        }
        found = 31 * found + c;
    }
    return found;
}

static inline uint32_t fold(uint64_t value) { return (uint32_t)(value ^ value >> 32); }

/* Java's hash of an item; -1 for a text that isn't UTF-8, and for a NaN that isn't Java's own. */
static int64_t hash_item(const Item *item, int32_t kind) {
    switch (kind) {
    case TEXT: return hash_text(item->at + 4, item->size - 4);
    case LONG: return fold(item->head);
    case DOUBLE: {
        uint64_t bits = item->head, exponent = 0x7FF0000000000000u;
        return (bits & ~((uint64_t)1 << 63)) > exponent && bits != 0x7FF8000000000000u ? -1 : (int64_t)fold(bits);
    }
    case BYTE: return (uint32_t)(int8_t)item->at[1];
    case SHORT: return (uint32_t)(int16_t)(item->at[1] | item->at[2] << 8);
    case INTEGER: return little4(item->at + 1);
    default: {
        uint32_t bits = little4(item->at + 1);
        return (bits & 0x7FFFFFFFu) > 0x7F800000u && bits != 0x7FC00000u ? -1 : (int64_t)bits;
    }
    }
}

static inline uint32_t mixed(uint32_t hash) {
    uint64_t key = (uint64_t)(int64_t)(int32_t)hash;
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCDu;
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53u;
    return (uint32_t)(key ^ key >> 33);
}

static inline int is_same(const Item *a, const Item *b) {
    if (a->head != b->head || a->tail != b->tail || a->size != b->size) return 0;
    return a->size <= 16 || !memcmp(a->at + 8, b->at + 8, a->size - 16);
}

/* The hash of an item's bytes.  As that of hash.h, but an item has at least eight bytes behind it. */
static inline uint64_t hash_bytes(const Item *item, uint64_t seed) {
    uint64_t found = mix(item->head ^ seed, 0xA0761D6478BD642Fu ^ item->size), word;
    for (uint32_t at = 8; at + 8 < item->size; at += 8) {
        memcpy(&word, item->at + at, 8);
        found = mix(found ^ word, 0xA0761D6478BD642Fu ^ seed);
    }
    return mix(found ^ item->tail, 0xE7037ED1A0B428DBu ^ seed);
}

/* ---------------------------------------------------------------- a stored sketch */

/* Read a stored sketch; 0 if it is damaged, or memory is short. */
static int is_read(const byte *data, int64_t total, int32_t kind, uint64_t seed, Stored *found) {
    *found = (Stored){0};
    if (kind < TEXT || kind > FLOAT || total < HEADER + NULLS) return 0;
    int64_t longs = data[0] & 63, lg_most = data[3], lg_now = data[4], at = HEADER;
    if (data[1] != 1 || data[2] != FAMILY || lg_now < LEAST_LG || lg_now > lg_most || lg_most > MOST_LG) return 0;
    if (longs != 1 && longs != 4) return 0;
    found->lg_most = lg_most;
    found->lg_now = lg_now;
    if (!(data[5] & EMPTY)) {
        if (total < HEADER + COUNTS + NULLS) return 0;
        int64_t count = little4(data + at);
        found->seen = (int64_t)little8(data + at + 8);
        found->offset = (int64_t)little8(data + at + 16);
        at += COUNTS;
        if (found->offset < 0 || found->offset > found->seen || found->seen > MOST_SEEN) return 0;
        if (count > room_of(lg_now) || 8 * count > total - at - NULLS) return 0;
        const byte *counts = data + at;
        at += 8 * count;
        Item *items = found->items = malloc((size_t)(count + 1) * sizeof(Item));
        if (!items) return 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t head = kind == TEXT ? 4 : kind >= BYTE, size = head + SIZES[kind], times = (int64_t)little8(counts + 8 * i);
            if (size > total - at - NULLS || times <= 0 || times > found->seen) return 0;
            if (kind == TEXT) {
                if (data[at + 3] & 0x80) return 0;
                size += little4(data + at);
                if (size > total - at - NULLS) return 0;
            } else if (head && data[at] != TAGS[kind]) {
                return 0;
            }
            Item *item = &items[i];
            *item = (Item){.at = data + at, .count = times, .size = (uint32_t)size};
            memcpy(&item->head, data + at, 8);
            if (size < 8) item->head &= ((uint64_t)1 << 8 * size) - 1;
            else if (size > 8) memcpy(&item->tail, data + at + size - 8, 8);
            item->hash = hash_bytes(item, seed);
            at += size;
        }
        found->count = count;
    }
    if (total - at < NULLS) return 0;
    found->nulls = (int64_t)((uint64_t)(uint32_t)big4(data + at) << 32 | (uint32_t)big4(data + at + 4));
    return found->nulls >= 0 && found->nulls <= MOST_SEEN;
}

/* How far Java's iterator goes from one slot to the next. */
static inline int64_t stride_of(int64_t size) { return (int64_t)((double)size * GOLDEN) | 1; }

/* Fill an array with the places of the items of a stored sketch, in the order in which Java iterates over them; 0 if an item comes
   twice, or memory is short.
   order:  output: room for one more than there are items */
static int is_ordered(const Stored *stored, uint32_t *order) {
    int64_t size = (int64_t)1 << stored->lg_now, mask = size - 1, slot = 0, count = 0;
    uint32_t *table = calloc((size_t)size, sizeof(uint32_t));
    if (!table) return 0;
    int is_right = 1;
    for (int64_t i = 0; i < stored->count; i++) {
        const Item *item = &stored->items[i];
        for (slot = item->mixed & mask; table[slot]; slot = (slot + 1) & mask)
            if (is_same(&stored->items[table[slot] - 1], item)) is_right = 0;
        table[slot] = (uint32_t)(i + 1);
    }
    slot = 0;
    for (int64_t i = 0, stride = stride_of(size); i < size; i++, slot = (slot + stride) & mask) {
        order[count] = table[slot] - 1;
        count += table[slot] != 0;
    }
    free(table);
    return is_right;
}

/* ---------------------------------------------------------------- a union */

static inline uint64_t *index_of(const Union *whole, const Item *item) {
    uint64_t mask = ((uint64_t)2 << whole->lg) - 1, slot = item->hash & mask, entry;
    for (; (entry = whole->index[slot]); slot = (slot + 1) & mask)
        if (entry >> 32 == item->hash >> 32 && is_same(&whole->items[(uint32_t)entry - 1], item)) break;
    return &whole->index[slot];
}

/* The place of an item; NONE if it isn't there. */
static inline uint32_t place_of(const Union *whole, const Item *item) { return (uint32_t)*index_of(whole, item) - 1; }

static void put_slot(Union *whole, int64_t place) {
    int64_t mask = ((int64_t)1 << whole->lg) - 1, slot = whole->items[place].mixed & mask;
    while (whole->slots[slot]) slot = (slot + 1) & mask;
    whole->slots[slot] = (uint32_t)(place + 1);
}

static void put_index(Union *whole, int64_t place) {
    *index_of(whole, &whole->items[place]) = whole->items[place].hash >> 32 << 32 | (uint64_t)(place + 1);
}

static void free_union(Union *whole) {
    free(whole->items);
    free(whole->slots);
    free(whole->index);
}

/* Make the tables of 1 << lg slots; items stay, in the order of the slots so far.  0 if memory is short. */
static int is_resized(Union *whole, int64_t lg) {
    Union made = *whole;
    made.lg = lg;
    made.items = malloc((size_t)(room_of(lg) + 1) * sizeof(Item));
    made.slots = calloc((size_t)1 << lg, sizeof(uint32_t));
    made.index = calloc((size_t)2 << lg, sizeof(uint64_t));
    if (!made.items || !made.slots || !made.index) {
        free_union(&made);
        return 0;
    }
    int64_t count = 0;
    for (int64_t slot = 0; whole->slots && slot < (int64_t)1 << whole->lg; slot++)
        if (whole->slots[slot]) made.items[count++] = whole->items[whole->slots[slot] - 1];
    made.count = count;
    /* Whoever only drops items has put the others to their slots. */
    if (lg == whole->lg && whole->slots) {
        count = 0;
        for (int64_t slot = 0; slot < (int64_t)1 << lg; slot++)
            if (whole->slots[slot]) made.slots[slot] = (uint32_t)++count;
    } else {
        for (int64_t place = 0; place < count; place++) put_slot(&made, place);
    }
    for (int64_t place = 0; place < count; place++) put_index(&made, place);
    free_union(whole);
    *whole = made;
    return 1;
}

/* Free a slot, and move back the items that came after it for lack of it. */
static void delete_slot(Union *whole, int64_t slot) {
    int64_t mask = ((int64_t)1 << whole->lg) - 1, after = (slot + 1) & mask;
    whole->slots[slot] = 0;
    for (; whole->slots[after]; after = (after + 1) & mask) {
        int64_t drift = (after - whole->items[whole->slots[after] - 1].mixed) & mask;
        if (drift < ((after - slot) & mask)) continue;
        whole->slots[slot] = whole->slots[after];
        whole->slots[after] = 0;
        slot = after;
    }
}

static int by_number(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Take the median of some counts from all, and drop items that have none left; 0 if memory is short. */
static int is_purged(Union *whole) {
    int64_t counts[SAMPLE], found = 0, size = (int64_t)1 << whole->lg, sample = room_of(whole->lg_most), unused = size - 1;
    if (sample > SAMPLE) sample = SAMPLE;
    for (int64_t slot = 0; slot < size && found < sample; slot++)
        if (whole->slots[slot]) counts[found++] = whole->items[whole->slots[slot] - 1].count;
    qsort(counts, (size_t)found, sizeof(int64_t), by_number);
    int64_t median = counts[found / 2];
    for (int64_t place = 0; place < whole->count; place++) whole->items[place].count -= median;
    while (whole->slots[unused]) unused--;
    for (int64_t i = 1; i <= size; i++) {
        int64_t slot = (unused - i) & (size - 1);
        if (whole->slots[slot] && whole->items[whole->slots[slot] - 1].count <= 0) delete_slot(whole, slot);
    }
    whole->offset += median;
    return whole->offset <= MOST_SUM && is_resized(whole, whole->lg);
}

/* Add an item that isn't there; 0 if memory is short. */
static inline int is_added(Union *whole, const Item *item) {
    int64_t place = whole->count++;
    whole->items[place] = *item;
    put_slot(whole, place);
    put_index(whole, place);
    if (whole->count <= room_of(whole->lg)) return 1;
    return whole->lg < whole->lg_most ? is_resized(whole, whole->lg + 1) : is_purged(whole);
}

/* Find the places of a sketch's items in a union; returns how many aren't there. */
static int64_t find_places(const Union *whole, const Stored *part, uint32_t *places) {
    uint64_t mask = ((uint64_t)2 << whole->lg) - 1;
    int64_t unknown = 0;
    for (int64_t i = 0; i < part->count; i++) {
        /* The tables are larger than the processor's nearest cache, so fetch ahead. */
        if (i + 2 * AHEAD < part->count) __builtin_prefetch(&whole->index[part->items[i + 2 * AHEAD].hash & mask]);
        if (i + AHEAD < part->count) {
            uint32_t next = (uint32_t)whole->index[part->items[i + AHEAD].hash & mask];
            if (next) __builtin_prefetch(&whole->items[next - 1]);
        }
        places[i] = place_of(whole, &part->items[i]);
        unknown += places[i] == NONE;
    }
    return unknown;
}

/* Add the items of a sketch, some of which are new to the union; 0 as `is_merged`.
   places:  of all items; NONE for those that are new */
static int is_extended(Union *whole, Stored *part, int32_t kind, int64_t unknown, const uint32_t *places) {
    for (int64_t i = 0; i < part->count; i++) {
        if (places[i] != NONE) {
            part->items[i].mixed = whole->items[places[i]].mixed;
            continue;
        }
        int64_t found = hash_item(&part->items[i], kind);
        if (found < 0) return 0;
        part->items[i].mixed = mixed((uint32_t)found);
    }
    uint32_t *order = malloc((size_t)(part->count + 1) * sizeof(uint32_t));
    int is_right = order && is_ordered(part, order);
    /* As long as no item is dropped, only the order of new ones matters.  An item that is added may move others. */
    int may_drop = whole->count + unknown > room_of(whole->lg_most);
    for (int64_t i = 0; i < part->count && !may_drop; i++)
        if (places[i] != NONE) whole->items[places[i]].count += part->items[i].count;
    for (int64_t i = 0; i < part->count && is_right; i++) {
        const Item *item = &part->items[order[i]];
        uint32_t place = may_drop ? place_of(whole, item) : places[order[i]];
        if (place == NONE) is_right = is_added(whole, item);
        else if (may_drop) whole->items[place].count += item->count;
    }
    free(order);
    return is_right;
}

/* Add a stored sketch to a union; 0 if a sum is out of range, an item comes twice, Python must hash one, or memory is short. */
static int is_merged(Union *whole, Stored *part, int32_t kind) {
    whole->nulls += part->nulls;
    if (whole->nulls > MOST_SUM) return 0;
    if (!part->count) return 1;
    /* The count of an item is at most that of all values. */
    if (whole->seen + part->seen > MOST_SUM) return 0;
    uint32_t *places = malloc((size_t)part->count * sizeof(uint32_t));
    if (!places) return 0;
    int64_t unknown = find_places(whole, part, places);
    int is_right = 1;
    if (unknown) {
        is_right = is_extended(whole, part, kind, unknown, places);
    } else {
        for (int64_t i = 0; i < part->count; i++) whole->items[places[i]].count += part->items[i].count;
    }
    free(places);
    whole->seen += part->seen;
    whole->offset += part->offset;
    return is_right && whole->offset <= MOST_SUM;
}

static byte *write8(byte *to, int64_t value) {
    for (int i = 0; i < 8; i++) to[i] = (byte)((uint64_t)value >> 8 * i);
    return to + 8;
}

/* Write a union as Java does; returns its bytes. */
static int64_t write_sketch(const Union *whole, byte *out) {
    int is_empty = !whole->count;
    byte *to = out + HEADER, header[] = {is_empty ? 1 : 4, 1, FAMILY, (byte)whole->lg_most, (byte)whole->lg, is_empty ? EMPTY : 0, 0, 0};
    memcpy(out, header, HEADER);
    if (!is_empty) {
        int64_t size = (int64_t)1 << whole->lg;
        to = write8(write8(write8(to, whole->count), whole->seen), whole->offset);
        for (int64_t slot = 0; slot < size; slot++)
            if (whole->slots[slot]) to = write8(to, whole->items[whole->slots[slot] - 1].count);
        for (int64_t slot = 0; slot < size; slot++) {
            if (!whole->slots[slot]) continue;
            const Item *item = &whole->items[whole->slots[slot] - 1];
            memcpy(to, item->at, item->size);
            to += item->size;
        }
    }
    for (int i = 0; i < 8; i++) *to++ = (byte)((uint64_t)whole->nulls >> (56 - 8 * i));
    return to - out;
}

/* ---------------------------------------------------------------- entry points */

/* Merge stored sketches of one size.  Returns the bytes of the union; -1 if one is damaged, or has items that Python must hash.
   kind:  of the items
   out:   output: room for the bytes of all sketches, and for 40 */
int64_t merge_items(int64_t parts, const byte *const *data, const int64_t *size, int32_t kind, uint64_t seed, byte *out) {
    Union whole = {0};
    int is_right = parts > 0 && is_resized(&whole, LEAST_LG);
    for (int64_t p = 0; p < parts && is_right; p++) {
        Stored part;
        is_right = is_read(data[p], size[p], kind, seed, &part);
        if (!p) whole.lg_most = part.lg_most;
        is_right = is_right && part.lg_most == whole.lg_most && is_merged(&whole, &part, kind);
        free(part.items);
    }
    int64_t written = is_right ? write_sketch(&whole, out) : -1;
    free_union(&whole);
    return written;
}

/* Find the most frequent items of a stored sketch, the most frequent first.  Returns how many, at most k; -1 as `merge_items`.
   begin, size, count:  output: where each lies in `data`, and how often it came at least
   sums:                output: how much more often each may have come, and how many NULLs there are */
int64_t top_items(
    const byte *data, int64_t total, int32_t kind, uint64_t seed, int64_t k, int64_t *begin, int64_t *size, int64_t *count, int64_t *sums
) {
    Union whole = {0};
    Stored stored = {0};
    int is_right = is_resized(&whole, LEAST_LG) && is_read(data, total, kind, seed, &stored);
    whole.lg_most = stored.lg_most;
    int64_t found = -1;
    if (is_right && is_merged(&whole, &stored, kind)) {
        sums[0] = whole.offset;
        sums[1] = whole.nulls;
        found = 0;
        int64_t slots = (int64_t)1 << whole.lg, stride = stride_of(slots), slot = 0;
        for (int64_t i = 0; i < slots; i++, slot = (slot + stride) & (slots - 1)) {
            if (!whole.slots[slot]) continue;
            const Item *item = &whole.items[whole.slots[slot] - 1];
            if (item->count < whole.offset || (found == k && (!k || item->count <= count[k - 1]))) continue;
            int64_t place = found < k ? found++ : k - 1;
            /* Equal counts stay in their order. */
            for (; place && count[place - 1] < item->count; place--) {
                begin[place] = begin[place - 1];
                size[place] = size[place - 1];
                count[place] = count[place - 1];
            }
            begin[place] = item->at - data;
            size[place] = item->size;
            count[place] = item->count;
        }
    }
    free(stored.items);
    free_union(&whole);
    return found;
}
