/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C with the instruction of the CPU if it has one, else with eight tables. Any thread.
 */
#include "base/rows/crc32c.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/rows/fileio.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are loaded as little-endian");

static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;

        for (int bit = 0; bit < 8; bit++) {
            crc = (crc & 1) != 0 ? (crc >> 1) ^ UINT32_C(0x82F63B78) : crc >> 1;
        }
        tables[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int t = 1; t < 8; t++) {
            tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
        }
    }
}

static uint32_t update_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    (void)pthread_once(&tables_once, tables_init); /* cannot fail with these arguments */
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;

        memcpy(&word, data, 8);
        word ^= crc;
        crc = tables[7][word & 0xff] ^ tables[6][(word >> 8) & 0xff] ^
              tables[5][(word >> 16) & 0xff] ^ tables[4][(word >> 24) & 0xff] ^
              tables[3][(word >> 32) & 0xff] ^ tables[2][(word >> 40) & 0xff] ^
              tables[1][(word >> 48) & 0xff] ^ tables[0][word >> 56];
    }
    for (; size > 0; data++, size--) {
        crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xff];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t update_sse42(uint32_t crc, const uint8_t *data,
                                                               size_t size)
{
    uint64_t wide = crc;

    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;

        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size > 0; data++, size--) {
        crc = __builtin_ia32_crc32qi(crc, *data);
    }
    return crc;
}
#endif

uint32_t hps_crc32c(uint32_t crc, const void *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return ~update_sse42(~crc, (const uint8_t *)data, size);
    }
#endif
    return ~update_tables(~crc, (const uint8_t *)data, size);
}

hps_status hps_crc32c_file(const char *path, const atomic_bool *cancel, uint32_t *out_crc,
                           uint64_t *out_bytes, struct hps_error *err)
{
    uint64_t bytes = 0;
    int fd = -1;

    hps_status status = hps_file_open_read(path, &fd, &bytes, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_file_copy(fd, -1, path, bytes, cancel, out_crc, err);
    close(fd);
    if (status == HPS_OK) {
        *out_bytes = bytes;
    }
    return status;
}
