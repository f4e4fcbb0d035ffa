/* What a rewrite of a state does with each row.  It hashes the key as Spark does, and writes the row to its partition.
   It merges sorted runs, and makes the blocks of an SST.

   Records are those of snapshots of the HDFS-backed provider: size of the key, key, size of the value (-1: deleted), value. */

#include "hash.h"
#include "native.h"
#include "records.h"

/* The kinds of columns that Spark hashes here; as `native/rewrite.py` numbers them. */
enum { BYTE, SHORT, INT, LONG, BOOLEAN, FLOAT, DOUBLE, BYTES };

static inline uint32_t turn(uint32_t word, int by) { return word << by | word >> (32 - by); }

static inline uint32_t mix_word(uint32_t hashed, uint32_t word) {
    return turn(hashed ^ turn(word * 0xCC9E2D51u, 15) * 0x1B873593u, 13) * 5 + 0xE6546B64u;
}

static inline uint32_t finish(uint32_t hashed, uint32_t size) {
    hashed ^= size;
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6Bu;
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35u;
    return hashed ^ hashed >> 16;
}

static inline uint32_t hash_int(uint32_t value, uint32_t seed) { return finish(mix_word(seed, value), 4); }

static inline uint32_t hash_long(uint64_t value, uint32_t seed) {
    return finish(mix_word(mix_word(seed, (uint32_t)value), (uint32_t)(value >> 32)), 8);
}

static inline uint32_t hash_bytes(const byte *at, int64_t size, uint32_t seed) {
    int64_t whole = size & ~(int64_t)3;
    for (int64_t i = 0; i < whole; i += 4) seed = mix_word(seed, little4(at + i));
    for (int64_t i = whole; i < size; i++) seed = mix_word(seed, (uint32_t)(int32_t)(int8_t)at[i]);
    return finish(seed, (uint32_t)size);
}

/* Spark's hash of rows (schema/murmur.py); 0, or -1 if a row is too short or points outside.
   before:  the bytes in front of each row, the last of which must be 0
   fields:  of a row; its first `columns` are hashed, of these kinds */
int32_t hash_rows(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, int64_t before,
                  int64_t fields, int64_t columns, const int64_t *kinds, int32_t *out) {
    int64_t bits = (fields + 63) / 64 * 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t row_size = size[i] - before;
        if (!is_inside(total, begin[i], size[i]) || row_size < bits + 8 * fields) return -1;
        const byte *row = data + begin[i] + before;
        if (before && row[-1]) return -1;
        uint32_t hashed = 42;
        for (int64_t c = 0; c < columns; c++) {
            if (row[c / 8] >> (c % 8) & 1) continue; /* NULL */
            const byte *slot = row + bits + 8 * c;
            uint64_t word = little8(slot);
            double real;
            float single;
            uint32_t half;
            switch (kinds[c]) {
            case BYTE: hashed = hash_int((uint32_t)(int32_t)(int8_t)slot[0], hashed); break;
            case SHORT: hashed = hash_int((uint32_t)(int32_t)(int16_t)(uint16_t)word, hashed); break;
            case INT: hashed = hash_int((uint32_t)word, hashed); break;
            case LONG: hashed = hash_long(word, hashed); break;
            case BOOLEAN: hashed = hash_int(slot[0] != 0, hashed); break;
            case FLOAT:
                half = (uint32_t)word;
                memcpy(&single, &half, 4);
                hashed = hash_int(single != single ? 0x7FC00000u : single == 0 ? 0 : half, hashed);
                break;
            case DOUBLE:
                memcpy(&real, &word, 8);
                hashed = hash_long(real != real ? 0x7FF8000000000000u : real == 0 ? 0 : word, hashed);
                break;
            case BYTES: {
                int64_t at = (int64_t)(word >> 32), length = (int64_t)(word & 0xFFFFFFFF);
                if (!is_inside(row_size, at, length)) return -1;
                hashed = hash_bytes(row + at, length, hashed);
                break;
            }
            default: return -1;
            }
        }
        out[i] = (int32_t)hashed;
    }
    return 0;
}

static inline byte *put_size(byte *out, int32_t size) {
    for (int shift = 24; shift >= 0; shift -= 8) *out++ = (byte)((uint32_t)size >> shift);
    return out;
}

/* Write rows as records, each to its place; 0, or -1 if one lies outside its buffer or has no room.
   gone:   whether the row is a deletion; NULL if none is
   place:  of each row, which of the areas it belongs to
   at:     input: where each area begins in `out`; output: where it ends
   end:    where each area must end */
int32_t write_records(const byte *keys, int64_t keys_total, const int64_t *key_begin, const int64_t *key_size, const byte *values,
                      int64_t values_total, const int64_t *begin, const int64_t *size, const byte *gone, int64_t count, int64_t areas,
                      const int64_t *place, int64_t *at, const int64_t *end, byte *out) {
    for (int64_t i = 0; i < count; i++) {
        int64_t area = place[i];
        if (area < 0 || area >= areas || !is_inside(keys_total, key_begin[i], key_size[i])) return -1;
        int is_gone = gone && gone[i];
        int64_t value = is_gone ? 0 : size[i];
        if (!is_gone && !is_inside(values_total, begin[i], value)) return -1;
        if (key_size[i] > INT32_MAX || value > INT32_MAX || key_size[i] + value + 8 > end[area] - at[area]) return -1;
        byte *to = put_size(out + at[area], (int32_t)key_size[i]);
        const byte *to_end = out + end[area];
        copy_short(to, keys + key_begin[i], key_size[i], to_end, keys + keys_total);
        to = put_size(to + key_size[i], is_gone ? -1 : (int32_t)value);
        if (value) copy_short(to, values + begin[i], value, to_end, values + values_total);
        at[area] += key_size[i] + value + 8;
    }
    return 0;
}

/* The sum of two hashes of each row, whatever their order; 0, or -1 if one lies outside its buffer.
   seeds:  two, which differ between runs
   sums:   input and output */
int32_t sum_rows(const byte *keys, int64_t keys_total, const int64_t *key_begin, const int64_t *key_size, const byte *values,
                 int64_t values_total, const int64_t *begin, const int64_t *size, const byte *gone, int64_t count,
                 const uint64_t *seeds, uint64_t *sums) {
    for (int64_t i = 0; i < count; i++) {
        int is_gone = gone && gone[i];
        if (!is_inside(keys_total, key_begin[i], key_size[i])) return -1;
        if (!is_gone && !is_inside(values_total, begin[i], size[i])) return -1;
        for (int n = 0; n < 2; n++) {
            uint64_t key = hash(keys + key_begin[i], key_size[i], seeds[n]);
            sums[n] += is_gone ? mix(key, 0xD6E8FEB86659FD93u) : hash(values + begin[i], size[i], key);
        }
    }
    return 0;
}

/* The order of two keys, as RocksDB's. */
static inline int compare(const byte *a, int64_t a_size, const byte *b, int64_t b_size) {
    int found = memcmp(a, b, (size_t)(a_size < b_size ? a_size : b_size));
    return found ? found : a_size < b_size ? -1 : a_size > b_size;
}

/* One sorted run of records; as `native/rewrite.py` has it. */
typedef struct {
    const byte *data;
    int64_t total, at, more; /* more: whether records follow behind `total` */
    int64_t key_begin, key_size, next;
} Run;

static inline int load(Run *run) {
    Record record;
    run->next = next_record(run->data, run->total, run->at, 0, &record);
    if (run->next < 0) return 0;
    if (record.kind != PUT) {
        run->next = -1;
        return 0;
    }
    run->key_begin = record.key_begin;
    run->key_size = record.key_size;
    return 1;
}

static inline int is_before(const Run *a, const Run *b) {
    return compare(a->data + a->key_begin, a->key_size, b->data + b->key_begin, b->key_size) < 0;
}

static void sink(Run **heap, int64_t count, int64_t at) {
    for (;;) {
        int64_t least = at, child = 2 * at + 1;
        for (int64_t i = child; i < child + 2 && i < count; i++)
            if (is_before(heap[i], heap[least])) least = i;
        if (least == at) return;
        Run *swapped = heap[at];
        heap[at] = heap[least];
        heap[least] = swapped;
        at = least;
    }
}

/* Merge sorted runs to `out`.  It ends if a run needs its next bytes, or if there is no room.
   Returns the bytes written, or -1 for damage.
   heap:    room for as many pointers as there are runs
   needed:  output: the run that needs more, -1 for none */
int64_t merge_records(int64_t count, Run *runs, Run **heap, byte *out, int64_t room, int64_t *needed) {
    int64_t active = 0, used = 0;
    *needed = -1;
    for (int64_t i = 0; i < count; i++) {
        if (runs[i].at == runs[i].total && !runs[i].more) continue;
        if (!load(&runs[i])) {
            *needed = i;
            return runs[i].more ? 0 : -1;
        }
        heap[active++] = &runs[i];
    }
    for (int64_t i = active / 2 - 1; i >= 0; i--) sink(heap, active, i);
    while (active) {
        Run *run = heap[0];
        int64_t size = run->next - run->at;
        if (size > room - used) return used || size <= room ? used : -2;
        memcpy(out + used, run->data + run->at, (size_t)size);
        used += size;
        run->at = run->next;
        if (run->at == run->total && !run->more) {
            heap[0] = heap[--active];
        } else if (!load(run)) {
            *needed = run - runs;
            return run->more ? used : -1;
        }
        sink(heap, active, 0);
    }
    return used;
}

static inline byte *put_varint(byte *out, uint64_t number) {
    for (; number >= 0x80; number >>= 7) *out++ = (byte)(number | 0x80);
    *out++ = (byte)number;
    return out;
}

static inline void put_little(byte *out, uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++) out[i] = (byte)(number >> 8 * i);
}

enum { TAIL = 8, PUT_TAG = 1, SIZES = 11, MOST_RESTARTS = 512 };

/* One block of an SST, of records in order: puts with sequence number 0, whose keys share nothing.
   least:     the block ends when it has so many bytes
   interval:  of restart points
   is_last:   whether nothing follows the records: the block may be smaller
   last:      the key before, which every other one must follow
   found:     output: where the next block begins, entries, bytes of keys, bytes of values, begin and size of the last key
   Returns the bytes of the block; 0 if there are too few records; -1 for damage, -2 without room, -3 if keys aren't in order. */
int64_t build_block(const byte *data, int64_t total, int64_t at, int64_t least, int64_t interval, int32_t is_last, const byte *last,
                    int64_t last_size, byte *out, int64_t room, int64_t *found) {
    uint32_t restarts[MOST_RESTARTS];
    int64_t used = 0, entries = 0, points = 0, keys = 0, values = 0;
    const byte *before = last;
    int64_t before_size = last_size;
    while (used < least && at < total) {
        Record record;
        int64_t next = next_record(data, total, at, 0, &record);
        if (next < 0) {
            if (is_last) return -1;
            return 0;
        }
        if (record.kind != PUT) return -1;
        const byte *key = data + record.key_begin;
        if (before_size >= 0 && compare(before, before_size, key, record.key_size) >= 0) return -3;
        if (record.key_size + record.size + TAIL + SIZES > room - used) return -2;
        if (entries % interval == 0) {
            if (points == MOST_RESTARTS) return -2;
            restarts[points++] = (uint32_t)used;
        }
        byte *to = out + used;
        *to++ = 0;
        to = put_varint(to, (uint64_t)(record.key_size + TAIL));
        to = put_varint(to, (uint64_t)record.size);
        memcpy(to, key, (size_t)record.key_size);
        to += record.key_size;
        put_little(to, PUT_TAG, TAIL);
        to += TAIL;
        memcpy(to, data + record.begin, (size_t)record.size);
        used = to + record.size - out;
        entries++;
        keys += record.key_size + TAIL;
        values += record.size;
        before = key;
        before_size = record.key_size;
        at = next;
    }
    if (!entries || (used < least && !is_last)) return 0;
    if (4 * (points + 1) > room - used) return -2;
    for (int64_t i = 0; i < points; i++, used += 4) put_little(out + used, restarts[i], 4);
    put_little(out + used, (uint64_t)points, 4);
    found[0] = at;
    found[1] = entries;
    found[2] = keys;
    found[3] = values;
    found[4] = before - data;
    found[5] = before_size;
    return used + 4;
}
