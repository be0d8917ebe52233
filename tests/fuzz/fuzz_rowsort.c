/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows in any order, with any duplicate keys, through the sort of a load, in memory or merged from
 * runs on disk. The input is a list of additions. The result must be the keys in order, each with
 * the row that was added last.
 */
#include "base/hash.h"
#include "base/heap.h"
#include "base/rows/rowsort.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

enum {
    KEYS_MAX = 256,
    PIECE = 16,
    SPILLS = 0xf8,               /* modes from this on, for one of SPILLS_EVERY inputs */
    SPILLS_EVERY = 32,           /* such an input takes a hundred times as long */
    LARGE_ROW_BYTES = 60 * 1024, /* a sort has at most 17 such rows in memory */
    LARGE_KEYS_MAX = 64,
};

/* The keys that were added, in order. A row contains its index. */
static struct {
    hps_key keys[KEYS_MAX];
    uint32_t n;
} added;

static void fill(uint8_t *row, uint32_t row_bytes, uint32_t number)
{
    memset(row, (int)(number * 37 & 0xff), row_bytes);
    memcpy(row, &number, sizeof(number));
}

/* The index of the last row of a key. */
static uint32_t last_of(hps_key key)
{
    uint32_t i = added.n;

    while (i > 0 && added.keys[i - 1] != key) {
        i--;
    }
    HPS_ASSERT(i > 0);
    return i - 1;
}

static void add(struct hps_rowsort *sort, struct script *script, uint32_t row_bytes, uint8_t *rows)
{
    hps_key keys[PIECE];
    uint8_t how = script_u8(script);
    uint32_t n = (how & 15) + 1u;

    if (added.n + n > (row_bytes == LARGE_ROW_BYTES ? LARGE_KEYS_MAX : KEYS_MAX)) {
        return;
    }
    hps_key key = (how & 0x80) != 0 ? hps_mix64(script_u32(script)) : script_u8(script);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = key;
        key += (how & 0x40) != 0 ? (hps_key)0 - 1 : (how & 0x20) != 0 ? 0 : 1;
        added.keys[added.n] = keys[i];
        fill(rows + (size_t)i * row_bytes, row_bytes, added.n++);
    }
    HPS_ASSERT(hps_rowsort_add(sort, keys, rows, n, NULL) == HPS_OK);
}

static void check(struct hps_rowsort *sort, uint32_t row_bytes, uint8_t *rows)
{
    struct hps_rowsort_progress progress;
    hps_key keys[PIECE];
    hps_key last = 0;
    size_t total = 0;
    size_t n = 1;

    HPS_ASSERT(hps_rowsort_finish(sort, NULL) == HPS_OK);
    while (n > 0) {
        HPS_ASSERT(hps_rowsort_next(sort, PIECE, keys, rows, &n, NULL) == HPS_OK);
        for (size_t i = 0; i < n; i++) {
            uint32_t number;
            memcpy(&number, rows + i * row_bytes, sizeof(number));
            HPS_ASSERT(total + i == 0 || keys[i] > last);
            HPS_ASSERT(number == last_of(keys[i]));
            HPS_ASSERT(rows[(i + 1) * row_bytes - 1] == rows[i * row_bytes + sizeof(number)]);
            last = keys[i];
        }
        total += n;
    }
    hps_rowsort_progress_get(sort, &progress);
    HPS_ASSERT(progress.n_rows_in == added.n && progress.n_rows_out == total);
    HPS_ASSERT(progress.n_duplicates + total == added.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_rowsort *sort;

    (void)place_open();
    uint8_t mode = script_u8(&script);
    bool spills = mode >= SPILLS && hps_hash_bytes(data, size, 0) % SPILLS_EVERY == 0;
    uint32_t row_bytes = spills ? LARGE_ROW_BYTES : 8u + (mode & 63) * 4;
    const struct hps_rowsort_options options = {.row_bytes = row_bytes,
                                                .memory_bytes = HPS_ROWSORT_MEMORY_BYTES_MIN,
                                                .n_rows_hint = spills ? 0 : KEYS_MAX,
                                                .dir = place_dir.path};
    uint8_t *rows = hps_alloc((size_t)PIECE * row_bytes);
    HPS_ASSERT(rows != NULL && hps_rowsort_new(&options, &sort, NULL) == HPS_OK);
    added.n = 0;
    while (script.left > 0) {
        add(sort, &script, row_bytes, rows);
    }
    check(sort, row_bytes, rows);
    hps_rowsort_free(sort);
    hps_free(rows);
    return 0;
}
