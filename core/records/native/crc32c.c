/* CRC-32C (Castagnoli): SSE4.2 or ARMv8 instructions where the processor has them, else a table of 8 x 256. */
#include "native.h"

#if defined(__aarch64__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#if defined(__ARM_FEATURE_CRC32)
#define ARM_INSTRUCTIONS
#elif defined(__linux__) && defined(__GNUC__) && !defined(__clang__) /* built for any ARMv8: asked for at run time */
#include <sys/auxv.h>
#define ARM_INSTRUCTIONS __attribute__((target("+crc")))
#define ASK_ARM ((getauxval(AT_HWCAP) & 1 << 7) != 0) /* HWCAP_CRC32 */
#endif
#endif

enum { STREAM = 1024 }; /* bytes */

static uint32_t table[8][256];
static uint32_t moved[4][256]; /* by place and value of a byte of a CRC: that CRC moved on over STREAM zero bytes */
static int hardware;

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t n);

static void prepare_streams(void) {
    static const uint8_t zeros[STREAM];
    for (int place = 0; place < 4; place++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t crc = by_table(1u << (8 * place + bit), zeros, STREAM);
            for (int value = 0; value < 1 << bit; value++)
                moved[place][1 << bit | value] = moved[place][value] ^ crc;
        }
}

static inline uint32_t moved_on(uint32_t crc) {
    return moved[0][crc & 0xFF] ^ moved[1][crc >> 8 & 0xFF] ^ moved[2][crc >> 16 & 0xFF] ^ moved[3][crc >> 24];
}

void crc32c_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        table[0][i] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int i = 0; i < 256; i++)
            table[row][i] = table[row - 1][i] >> 8 ^ table[0][table[row - 1][i] & 0xFF];
    prepare_streams();
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    hardware = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(ASK_ARM)
    hardware = ASK_ARM;
#elif defined(ARM_INSTRUCTIONS)
    hardware = 1;
#endif
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^
              table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define HARDWARE __attribute__((target("sse4.2")))
HARDWARE static inline uint32_t eight_bytes(uint32_t crc, const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return (uint32_t)__builtin_ia32_crc32di(crc, word);
}
HARDWARE static inline uint32_t one_byte(uint32_t crc, uint8_t byte) { return __builtin_ia32_crc32qi(crc, byte); }
#elif defined(ARM_INSTRUCTIONS)
#include <arm_acle.h>
#define HARDWARE ARM_INSTRUCTIONS
HARDWARE static inline uint32_t eight_bytes(uint32_t crc, const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return __crc32cd(crc, word);
}
HARDWARE static inline uint32_t one_byte(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
#endif

#ifdef HARDWARE
/* An instruction takes three cycles, and the next one may begin in each: three streams are read side by side. The CRC
   of the first, moved on over as many zero bytes as the second has, is that of both but for the second's own. */
HARDWARE static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 3 * STREAM) {
        uint32_t second = 0, third = 0;
        for (size_t at = 0; at < STREAM; at += 8) {
            crc = eight_bytes(crc, p + at);
            second = eight_bytes(second, p + STREAM + at);
            third = eight_bytes(third, p + 2 * STREAM + at);
        }
        crc = moved_on(moved_on(crc) ^ second) ^ third;
        p += 3 * STREAM;
        n -= 3 * STREAM;
    }
    for (; n >= 8; p += 8, n -= 8)
        crc = eight_bytes(crc, p);
    while (n--)
        crc = one_byte(crc, *p++);
    return crc;
}
#else
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n) { return by_table(crc, p, n); }
#endif

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    return ~(hardware ? by_instruction(crc, data, size) : by_table(crc, data, size));
}

PyObject *native_crc32c(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned long long seed = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*|K", &data, &seed))
        return NULL;
    uint32_t crc = (uint32_t)seed;
    if (data.len < 32768) { /* 1.3 µs; to have the GIL again may take a thread switch of 5 ms */
        crc = crc32c_extend(crc, data.buf, (size_t)data.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_extend(crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}
