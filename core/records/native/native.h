/* klamm.core.records._native: record batches (magic 2) to columns and back. See _native.pyi for what each function
 * takes and gives, and fallback.py for the twin in Python that gives the same bytes and the same errors.
 *
 * Rules: every read of input is checked against its end, on each pass (a writable buffer may change under us while the
 * GIL is let go); what is written is checked against what was allocated; no function trusts a count, a length or an
 * offset that came in. */
#ifndef KLAMM_NATIVE_H
#define KLAMM_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HEADER_SIZE 61
#define LENGTH_OVERHEAD 12
#define MAGIC 2
#define CRC_AT 17
#define CRC_FROM 21

/* What is wrong, noted without the GIL; empty while nothing is. */
typedef struct {
    char text[240];
} Fault;

#define FAULT(fault, ...) snprintf((fault)->text, sizeof((fault)->text), __VA_ARGS__)

/* Raises klamm.core.errors.CorruptRecordError; always NULL. */
PyObject *raise_corrupt(PyObject *module, const char *text);

static inline uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline int32_t get_i32(const uint8_t *p) { return (int32_t)get_u32(p); }
static inline int64_t get_i64(const uint8_t *p) {
    return (int64_t)((uint64_t)get_u32(p) << 32 | get_u32(p + 4));
}
static inline void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static inline void put_u32(uint8_t *p, uint32_t v) {
    put_u16(p, (uint16_t)(v >> 16));
    put_u16(p + 2, (uint16_t)v);
}
static inline void put_u64(uint8_t *p, uint64_t v) {
    put_u32(p, (uint32_t)(v >> 32));
    put_u32(p + 4, (uint32_t)v);
}

/* Zigzag varints: bytes that a value takes; writing it; both of the 64-bit value. */
static inline uint64_t zigzag(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }
static inline int varint_size(int64_t v) {
    uint64_t rest = zigzag(v);
    int n = 1;
    while (rest > 0x7F) {
        rest >>= 7;
        n++;
    }
    return n;
}
static inline uint8_t *put_varint(uint8_t *p, int64_t v) {
    uint64_t rest = zigzag(v);
    while (rest > 0x7F) {
        *p++ = (uint8_t)(rest & 0x7F) | 0x80;
        rest >>= 7;
    }
    *p++ = (uint8_t)rest;
    return p;
}

/* Reads a zigzag varint of up to `bits` (32 or 64) in [*pos, end). 0, or -1 with `what`: `past` if it is not whole. */
int read_varint(const uint8_t *data, int64_t *pos, int64_t end, int bits, const char *past, int64_t *value,
                const char **what);

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size);
void crc32c_prepare(void);

/* What a batch's header says of the bytes [data, data + size) that hold its records, uncompressed. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    int64_t count;
    int64_t base_offset;
    int64_t last_delta;
    int64_t base_timestamp;
    int fixed; /* every record's timestamp is base_timestamp (LogAppendTime) */
} Area;

/* One record. Lengths are -1 for null; positions count from the area's first byte. */
typedef struct {
    int64_t offset, timestamp;
    int64_t key, key_size;
    int64_t value, value_size;
    int64_t headers, header_count;
} Record;

/* The position of a reader of an area's records; starts as RECORD_CURSOR_START. `checked`: the headers that were found
 * valid last; those of the next record are mostly the same bytes. */
typedef struct {
    int64_t pos, index, previous;
    int64_t checked, checked_size, checked_count;
} RecordCursor;

#define RECORD_CURSOR_START {0, 0, -1, 0, 0, 0}

typedef struct {
    int64_t name, name_size, value, value_size;
} Header;

/* 0 when the next record is whole and right; -1 with a fault. */
int next_record(const Area *area, RecordCursor *cursor, Record *record, Fault *fault);
/* The header at *pos of a record that next_record has passed; checked all the same. */
int next_header(const Area *area, int64_t *pos, int64_t end, Header *header, const char **what, int64_t *number);
/* 0 when the cursor is where the area ends. */
int end_of_records(const Area *area, const RecordCursor *cursor, Fault *fault);

#define NO_WINDOW (-1)

/* Records that follow each other, of one window and with the same bytes of headers. */
typedef struct {
    int64_t window, records, bytes, headers, headers_size;
} Run;

/* Runs in the order of their records; `items` is freed by who has made it. */
typedef struct {
    Run *items;
    int64_t used, room;
    int no_memory;
} Runs;

/* Counts a record in the last run, or in a new one if it is of another window; -1 without memory. */
int count_in_window(Runs *runs, int64_t timestamp, int64_t bytes, int64_t window);
/* A list of (start of the window, records, bytes). */
PyObject *list_of_windows(const Runs *runs);

PyObject *native_crc32c(PyObject *module, PyObject *args);
PyObject *native_chain(PyObject *module, PyObject *args);
PyObject *native_pieces(PyObject *module, PyObject *args);
PyObject *native_lists(PyObject *module, PyObject *args);
PyObject *native_validate(PyObject *module, PyObject *args);
PyObject *native_columns(PyObject *module, PyObject *args);
PyObject *native_window_counts(PyObject *module, PyObject *args);
PyObject *native_tally(PyObject *module, PyObject *args);
PyObject *native_int64s(PyObject *module, PyObject *items);
PyObject *native_sizes(PyObject *module, PyObject *args);
PyObject *native_lengths(PyObject *module, PyObject *args);
PyObject *native_first_headers(PyObject *module, PyObject *data);
PyObject *native_add_headers(PyObject *module, PyObject *args);
PyObject *native_encode_records(PyObject *module, PyObject *args);
PyObject *native_encode_columns(PyObject *module, PyObject *args);
PyObject *native_seal(PyObject *module, PyObject *args);
PyObject *native_partitions(PyObject *module, PyObject *args);
PyObject *native_read_fast_produce_request(PyObject *module, PyObject *frame);
PyObject *native_write_fast_produce_response(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
