/* One record after another, every length checked against the record's own end. The order of the checks and the words
 * are those of explain() in fallback.py. */
#include "native.h"

#define PAST "its fields run past its length"

int read_varint(const uint8_t *data, int64_t *pos, int64_t end, int bits, const char *past, int64_t *value,
                const char **what) {
    uint64_t raw = 0;
    int shift = 0;
    for (;;) {
        if (*pos >= end) {
            *what = past;
            return -1;
        }
        uint8_t byte = data[(*pos)++];
        if (shift == 63 && (byte & 0x7F) > 1)
            raw = UINT64_MAX, shift = 64; /* more than 64 bits, said once the last byte is read */
        else if (shift < 64)
            raw |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
        shift = shift == 64 ? 64 : shift + 7;
        if (shift > (bits == 32 ? 28 : 63)) {
            *what = bits == 32 ? "a varint is longer than 32 bits" : "a varint is longer than 64 bits";
            return -1;
        }
    }
    if (shift == 64 || (bits == 32 && raw >> 32)) {
        *what = bits == 32 ? "a varint is longer than 32 bits" : "a varint is longer than 64 bits";
        return -1;
    }
    *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return 0;
}

/* Most varints take one byte or two. */
#define READ(bits, past, into)                                                       \
    do {                                                                             \
        if (pos < end && data[pos] < 0x80) {                                         \
            uint8_t byte_ = data[pos++];                                             \
            (into) = (int64_t)(byte_ >> 1) ^ -(int64_t)(byte_ & 1);                  \
        } else if (end - pos > 1 && data[pos + 1] < 0x80) {                          \
            uint32_t two_ = (data[pos] & 0x7Fu) | (uint32_t)data[pos + 1] << 7;      \
            pos += 2;                                                                \
            (into) = (int64_t)(two_ >> 1) ^ -(int64_t)(two_ & 1);                    \
        } else if (read_varint(data, &pos, end, (bits), (past), &(into), &what)) {   \
            goto wrong;                                                              \
        }                                                                            \
    } while (0)

/* UTF-8 as Python takes it: no surrogates, nothing beyond U+10FFFF, the shortest form only. */
static int is_utf8(const uint8_t *p, int64_t n) {
    int64_t i = 0;
    while (i < n) {
        uint8_t a = p[i];
        if (a < 0x80) {
            i++;
            continue;
        }
        int more = a >= 0xC2 && a <= 0xDF ? 1 : a >= 0xE0 && a <= 0xEF ? 2 : a >= 0xF0 && a <= 0xF4 ? 3 : 0;
        if (more == 0 || n - i <= more)
            return 0;
        uint8_t b = p[i + 1];
        if ((a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F) || (a == 0xF0 && b < 0x90) || (a == 0xF4 && b > 0x8F))
            return 0;
        for (int k = 1; k <= more; k++)
            if ((p[i + k] & 0xC0) != 0x80)
                return 0;
        i += more + 1;
    }
    return 1;
}

int next_header(const Area *area, int64_t *at, int64_t end, Header *header, const char **problem, int64_t *number) {
    const uint8_t *data = area->data;
    const char *what = NULL;
    int64_t pos = *at, n = 0;
    *number = INT64_MIN;
    READ(32, PAST, n);
    if (n < 0 || n > end - pos) {
        what = "a header's name has the length ";
        *number = n;
        goto wrong;
    }
    header->name = pos;
    header->name_size = n;
    if (!is_utf8(data + pos, n)) {
        what = "a header's name is not UTF-8";
        goto wrong;
    }
    pos += n;
    READ(32, PAST, n);
    if (n < -1 || n > end - pos) {
        what = "a header's value has the length ";
        *number = n;
        goto wrong;
    }
    header->value = pos;
    header->value_size = n;
    *at = pos + (n > 0 ? n : 0);
    return 0;
wrong:
    *problem = what;
    return -1;
}

#define WRONG(...)                                                                                                    \
    do {                                                                                                              \
        int used_ = snprintf(fault->text, sizeof fault->text, "record %lld at byte %lld: ", (long long)cursor->index, \
                             (long long)start);                                                                       \
        snprintf(fault->text + used_, sizeof fault->text - (size_t)used_, __VA_ARGS__);                               \
        return -1;                                                                                                    \
    } while (0)

int next_record(const Area *area, RecordCursor *cursor, Record *record, Fault *fault) {
    const uint8_t *data = area->data;
    const char *what = NULL;
    int64_t start = cursor->pos, pos = start, end = area->size, n = 0;
    READ(32, "the records end early", n);
    if (n < 0 || n > end - pos)
        WRONG("its length is %lld, %lld bytes are left", (long long)n, (long long)(end - pos));
    end = pos + n;
    if (pos >= end)
        WRONG(PAST);
    pos++; /* the record's attributes, unused */
    READ(64, PAST, n);
    if (area->fixed)
        record->timestamp = area->base_timestamp;
    else if (n > 0 ? area->base_timestamp > INT64_MAX - n : area->base_timestamp < INT64_MIN - n)
        WRONG("its timestamp is longer than 64 bits");
    else
        record->timestamp = area->base_timestamp + n;
    READ(32, PAST, n);
    if (n <= cursor->previous || n > area->last_delta)
        WRONG("its offset delta is %lld after %lld, the last is %lld", (long long)n, (long long)cursor->previous,
              (long long)area->last_delta);
    if (area->base_offset > INT64_MAX - n)
        WRONG("its offset is longer than 64 bits");
    cursor->previous = n;
    record->offset = area->base_offset + n;
    READ(32, PAST, n);
    if (n < -1)
        WRONG("its key has the length %lld", (long long)n);
    if (n > end - pos)
        WRONG(PAST);
    record->key = pos;
    record->key_size = n;
    pos += n > 0 ? n : 0;
    READ(32, PAST, n);
    if (n < -1)
        WRONG("its value has the length %lld", (long long)n);
    if (n > end - pos)
        WRONG(PAST);
    record->value = pos;
    record->value_size = n;
    pos += n > 0 ? n : 0;
    READ(32, PAST, n);
    if (n < 0 || n > end - pos)
        WRONG("it has %lld headers in %lld bytes", (long long)n, (long long)(end - pos));
    record->headers = pos;
    record->header_count = n;
    int same = n && n == cursor->checked_count && end - pos == cursor->checked_size &&
               !memcmp(data + pos, data + cursor->checked, (size_t)(end - pos));
    if (same)
        pos = end;
    for (int64_t i = 0; !same && i < record->header_count; i++) {
        Header header;
        int64_t number;
        if (next_header(area, &pos, end, &header, &what, &number)) {
            if (number == INT64_MIN)
                goto wrong;
            WRONG("%s%lld", what, (long long)number);
        }
    }
    if (pos != end)
        WRONG("%lld bytes are left over in it", (long long)(end - pos));
    cursor->checked = record->headers;
    cursor->checked_size = end - record->headers;
    cursor->checked_count = record->header_count;
    cursor->pos = pos;
    cursor->index++;
    return 0;
wrong:
    WRONG("%s", what);
}

int end_of_records(const Area *area, const RecordCursor *cursor, Fault *fault) {
    if (cursor->pos == area->size)
        return 0;
    FAULT(fault, "%lld bytes are left over after %lld records", (long long)(area->size - cursor->pos),
          (long long)area->count);
    return -1;
}
