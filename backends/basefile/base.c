/* SPDX-License-Identifier: Apache-2.0
 *
 * A base: opening its file, the checksums of its pages, and which rows have changed since it was
 * written. basefile.h has the format. Any thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/crc32c.h"
#include "base/rows/fileio.h"

_Static_assert(sizeof(struct hps_basefile_record) == 40, "format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "format");

/* ---- opening --------------------------------------------------------------------------------- */

static hps_status fail_damaged(const struct hps_basefile *base, const char *what,
                               struct hps_error *err)
{
    return hps_error_set(err, HPS_DATA_LOSS,
                         "base file %s: %s; restore a snapshot, or load the models into an empty "
                         "store",
                         base->name, what);
}

static hps_status base_alloc(struct hps_basefile *base, struct hps_error *err)
{
    uint64_t words = hps_basefile_words(base->record.n);
    base->exists = hps_alloc(words * sizeof(*base->exists) + base->n_pages * sizeof(*base->sums));
    base->changed = hps_calloc(words, sizeof(*base->changed));
    base->pages = hps_calloc(base->n_pages, sizeof(*base->pages));
    if (base->exists == NULL || base->changed == NULL || base->pages == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "base file %s: no memory", base->name);
    }
    base->sums = (const uint32_t *)(const void *)(base->exists + words);
    return HPS_OK;
}

/* Open the file and read what follows its pages: the bits and the checksums. */
static hps_status file_open(struct hps_basefile *base, struct hps_error *err)
{
    struct stat info;
    uint64_t pages_bytes = base->n_pages * HPS_BASEFILE_PAGE_BYTES;
    uint64_t bytes = hps_basefile_bytes(base);
    const struct hps_dir *dir = &base->store->dir;
    hps_status status = hps_dir_open_file(dir, base->name, O_RDONLY, &base->fd, err);
    if (status == HPS_NOT_FOUND) {
        return fail_damaged(base, "it is missing", err);
    }
    if (status == HPS_OK && (fstat(base->fd, &info) != 0 || (uint64_t)info.st_size != bytes)) {
        return fail_damaged(base, "it has a wrong size", err);
    }
    if (status == HPS_OK) {
        status = hps_file_pread(base->fd, base->name, base->exists, bytes - pages_bytes,
                                pages_bytes, err);
    }
    if (status == HPS_OK && hps_crc32c(0, base->exists, bytes - pages_bytes) != base->record.crc) {
        return fail_damaged(base, "its checksums are damaged", err);
    }
    return status;
}

static void file_map(struct hps_basefile *base)
{
    struct hps_error ignored;
    uint64_t bytes = base->n_pages * HPS_BASEFILE_PAGE_BYTES;
    hps_ignore(hps_dir_open_file(&base->store->dir, base->name, O_RDONLY | O_DIRECT,
                                 &base->fd_direct, &ignored)); /* optional */
    (void)posix_fadvise(base->fd, 0, 0, POSIX_FADV_RANDOM);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, base->fd, 0);
    if (map != MAP_FAILED) {
        base->map = map;
        (void)madvise(map, bytes, MADV_RANDOM);
    }
}

hps_status hps_basefile_base_open(struct hps_basefile_store *store,
                                  const struct hps_basefile_record *record, uint32_t row_bytes,
                                  struct hps_basefile **out_base, struct hps_error *err)
{
    struct hps_basefile *base = hps_calloc(1, sizeof(*base));
    if (base == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "base file: no memory");
    }
    (void)snprintf(base->name, sizeof(base->name), HPS_BASEFILE_PREFIX "%" PRIu64, record->number);
    base->store = store;
    base->record = *record;
    base->row_bytes = row_bytes;
    base->n_pages = hps_basefile_pages(record->n, row_bytes);
    base->fd = base->fd_direct = -1;
    hps_status status = HPS_OK;
    if (record->n == 0 || record->n > HPS_BASEFILE_NUMBER_MAX || record->n_rows > record->n) {
        status = fail_damaged(base, "impossible size", err);
    }
    if (status == HPS_OK) {
        status = base_alloc(base, err);
    }
    if (status == HPS_OK) {
        status = file_open(base, err);
    }
    if (status != HPS_OK) {
        hps_basefile_base_close(base);
        return status;
    }
    file_map(base);
    *out_base = base;
    return HPS_OK;
}

void hps_basefile_base_close(struct hps_basefile *base)
{
    if (base == NULL) {
        return;
    }
    HPS_ASSERT(base->recent == NULL);
    if (base->map != NULL) {
        munmap((void *)(uintptr_t)base->map, base->n_pages * HPS_BASEFILE_PAGE_BYTES);
    }
    if (base->fd >= 0) {
        close(base->fd);
    }
    if (base->fd_direct >= 0) {
        close(base->fd_direct);
    }
    hps_free(base->exists);
    hps_free((void *)base->changed);
    hps_free((void *)base->pages);
    hps_free(base);
}

void hps_basefile_base_remove(struct hps_basefile_store *store, uint64_t number)
{
    static const char *const suffixes[] = {"", HPS_BASEFILE_PART};
    for (unsigned i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        char name[HPS_BASEFILE_NAME_BYTES];
        (void)snprintf(name, sizeof(name), HPS_BASEFILE_PREFIX "%" PRIu64 "%s", number,
                       suffixes[i]);
        if (unlinkat(store->dir.fd, name, 0) != 0 && errno != ENOENT) {
            HPS_LOG(WARN, "rocksdb", "base file left behind: cannot be removed",
                    HPS_STR("file", name), HPS_STR("error", strerror(errno)));
        }
    }
}

/* ---- pages and rows -------------------------------------------------------------------------- */

bool hps_basefile_page_check(struct hps_basefile *base, uint64_t page, const uint8_t *data)
{
    HPS_ASSERT(page < base->n_pages);
    if (hps_crc32c(0, data, HPS_BASEFILE_PAGE_BYTES) == base->sums[page]) {
        return true;
    }
    if (atomic_exchange(&base->pages[page], HPS_BASEFILE_DAMAGED) != HPS_BASEFILE_DAMAGED) {
        atomic_fetch_add(&base->n_damaged, 1);
        HPS_LOG(ERROR, "rocksdb",
                "page damaged: its checksum is wrong; lookups of its keys fail; load the version "
                "again",
                HPS_STR("file", base->name), HPS_U64("page", page));
    }
    return false;
}

static bool set_bit(_Atomic(uint64_t) *bits, uint64_t i)
{
    uint64_t bit = UINT64_C(1) << i % 64;
    return (atomic_fetch_or_explicit(&bits[i / 64], bit, memory_order_release) & bit) == 0;
}

void hps_basefile_change(struct hps_basefile *base, hps_key key)
{
    uint64_t i = key - base->record.first;
    HPS_ASSERT(i < base->record.n);
    if (set_bit(base->changed, i)) {
        atomic_fetch_add_explicit(&base->n_changed, 1, memory_order_relaxed);
    }
    if (base->recent != NULL) {
        (void)set_bit(base->recent, i);
    }
}
