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

/* Read what follows the pages: the bits and the checksums. Returns why they cannot be used, or
 * NULL.
 */
static const char *ends_read(struct hps_basefile *base)
{
    struct stat info;
    struct hps_error err;
    uint64_t sums_bytes = base->n_pages * sizeof(*base->sums);
    uint64_t bits_bytes = hps_basefile_words(base->record.n) * sizeof(*base->exists);
    uint64_t at = base->n_pages * HPS_BASEFILE_PAGE_BYTES;
    if (fstat(base->fd, &info) != 0 || (uint64_t)info.st_size != hps_basefile_bytes(base)) {
        return "it has a wrong size";
    }
    if (hps_file_pread(base->fd, base->name, base->exists, bits_bytes, at, &err) != HPS_OK ||
        hps_file_pread(base->fd, base->name, base->sums, sums_bytes, at + bits_bytes, &err) !=
            HPS_OK) {
        return "it cannot be read";
    }
    uint32_t crc = hps_crc32c(hps_crc32c(0, base->exists, bits_bytes), base->sums, sums_bytes);
    return crc == base->record.crc ? NULL : "its checksums are damaged";
}

/* The file cannot be used. All rows count as damaged, so lookups of all keys without a changed row
 * fail: instead of the file, pages of zeros are read, which do not have the checksum 0. */
static hps_status base_lost(struct hps_basefile *base, const char *why, struct hps_error *err)
{
    HPS_LOG(ERROR, "rocksdb",
            "base file lost: lookups of its keys fail; unload the version and load it again",
            HPS_STR("file", base->name), HPS_STR("cause", why));
    if (base->fd >= 0) {
        close(base->fd);
    }
    base->fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    memset(base->exists, 0xff, hps_basefile_words(base->record.n) * sizeof(*base->exists));
    memset(base->sums, 0, base->n_pages * sizeof(*base->sums));
    memset((void *)base->pages, HPS_BASEFILE_DAMAGED, base->n_pages);
    base->n_damaged = base->n_pages < UINT32_MAX ? (uint32_t)base->n_pages : UINT32_MAX;
    return base->fd >= 0 ? HPS_OK : hps_file_error(err, errno, "cannot open", "/dev/zero");
}

hps_status hps_basefile_base_new(struct hps_basefile_store *store,
                                 const struct hps_basefile_record *record,
                                 const struct hps_table *table, uint64_t n_max,
                                 struct hps_basefile **out_base, struct hps_error *err)
{
    if (n_max == 0 || n_max > HPS_BASEFILE_NUMBER_MAX || record->n_rows > n_max) {
        return hps_error_set(err, HPS_DATA_LOSS, "base file %" PRIu64 ": impossible size",
                             record->number);
    }
    struct hps_basefile *base = hps_calloc(1, sizeof(*base));
    if (base == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "base file: no memory");
    }
    base->store = store;
    base->record = *record;
    base->table = table;
    base->fd = base->fd_direct = -1;
    hps_basefile_name(base->name, record->number);
    base->exists = hps_calloc(hps_basefile_words(n_max), sizeof(*base->exists));
    base->sums = hps_calloc(hps_basefile_pages(n_max, table->row_bytes), sizeof(*base->sums));
    if (base->exists == NULL || base->sums == NULL) {
        hps_basefile_base_close(base);
        return hps_error_set(err, HPS_NO_MEMORY, "base file: no memory for its checksums");
    }
    *out_base = base;
    return HPS_OK;
}

hps_status hps_basefile_base_open(struct hps_basefile *base, bool written, struct hps_error *err)
{
    const struct hps_dir *dir = &base->store->dir;
    struct hps_error ignored;
    base->n_pages = hps_basefile_pages(base->record.n, base->table->row_bytes);
    base->changed = hps_calloc(hps_basefile_words(base->record.n), sizeof(*base->changed));
    base->pages = hps_calloc(base->n_pages, sizeof(*base->pages));
    if (base->changed == NULL || base->pages == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "base file %s: no memory", base->name);
    }
    hps_status status = hps_dir_open_file(dir, base->name, O_RDONLY, &base->fd, err);
    const char *lost = status == HPS_NOT_FOUND ? "it is missing" : NULL;
    if (status == HPS_OK && !written) {
        lost = ends_read(base);
    }
    if (lost != NULL) {
        return base_lost(base, lost, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    uint64_t bytes = base->n_pages * HPS_BASEFILE_PAGE_BYTES;
    hps_ignore(hps_dir_open_file(dir, base->name, O_RDONLY | O_DIRECT, &base->fd_direct,
                                 &ignored)); /* optional */
    (void)posix_fadvise(base->fd, 0, 0, POSIX_FADV_RANDOM);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, base->fd, 0);
    if (map != MAP_FAILED) {
        base->map = map;
        (void)madvise(map, bytes, MADV_RANDOM);
    }
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
    hps_free(base->sums);
    hps_free((void *)base->changed);
    hps_free((void *)base->pages);
    hps_free(base);
}

void hps_basefile_base_remove(struct hps_basefile_store *store, uint64_t number)
{
    char name[HPS_BASEFILE_NAME_BYTES];
    hps_basefile_name(name, number);
    if (unlinkat(store->dir.fd, name, 0) != 0 && errno != ENOENT) {
        HPS_LOG(WARN, "rocksdb", "base file left behind: cannot be removed", HPS_STR("file", name),
                HPS_STR("error", strerror(errno)));
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
