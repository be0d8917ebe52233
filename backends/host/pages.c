/* SPDX-License-Identifier: Apache-2.0
 *
 * The byte budget and the address space of the host map. Thread-safe, except areas, which belong to
 * the writer of their table.
 */
#include "backends/host/pages.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

#define THP_FILE "/sys/kernel/mm/transparent_hugepage/enabled"

void hps_host_account_init(struct hps_host_account *account, struct hps_host_budget *budget)
{
    account->budget = budget;
    atomic_init(&account->bytes_max, UINT64_MAX);
    atomic_init(&account->used_bytes, 0);
    atomic_init(&account->huge_bytes, 0);
    account->starved = false;
}

bool hps_host_charge(struct hps_host_account *account, uint64_t bytes)
{
    struct hps_host_budget *budget = account->budget;
    uint64_t mine = atomic_load_explicit(&account->used_bytes, memory_order_relaxed);
    uint64_t mine_max = atomic_load_explicit(&account->bytes_max, memory_order_relaxed);
    account->starved = false;
    if (mine > mine_max || bytes > mine_max - mine) {
        return false;
    }
    uint64_t used = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
    do {
        if (bytes > budget->bytes_max - used) {
            account->starved = true;
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&budget->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    atomic_fetch_add_explicit(&account->used_bytes, bytes, memory_order_relaxed);
    return true;
}

void hps_host_discharge(struct hps_host_account *account, uint64_t bytes)
{
    uint64_t all =
        atomic_fetch_sub_explicit(&account->budget->used_bytes, bytes, memory_order_relaxed);
    uint64_t own = atomic_fetch_sub_explicit(&account->used_bytes, bytes, memory_order_relaxed);
    HPS_ASSERT(own >= bytes);
    HPS_ASSERT(all >= bytes);
}

uint64_t hps_host_available(const struct hps_host_budget *budget)
{
    return budget->bytes_max - atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
}

static void unmap(uint8_t *start, size_t bytes)
{
    if (bytes != 0) {
        int failed = munmap(start, bytes);
        HPS_ASSERT(failed == 0);
    }
}

bool hps_host_area_reserve(struct hps_host_area *area, size_t bytes)
{
    bytes = hps_host_pages_round(bytes);
    uint8_t *raw = mmap(NULL, bytes + HPS_HOST_HUGE_BYTES, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        return false;
    }
    size_t head = (size_t)(-(uintptr_t)raw & (HPS_HOST_HUGE_BYTES - 1));
    unmap(raw, head);
    unmap(raw + head + bytes, HPS_HOST_HUGE_BYTES - head);
    *area = (struct hps_host_area){.start = raw + head, .bytes = bytes};
    return true;
}

bool hps_host_area_commit(struct hps_host_area *area, size_t bytes)
{
    bytes = hps_host_pages_round(bytes);
    HPS_ASSERT(bytes <= area->bytes);
    if (bytes > area->committed) {
        if (mprotect(area->start + area->committed, bytes - area->committed,
                     PROT_READ | PROT_WRITE) != 0) {
            return false;
        }
        area->committed = bytes;
    }
    return true;
}

bool hps_host_area_advise(const struct hps_host_area *area, const struct hps_host_budget *budget,
                          bool huge)
{
    /* optional: 4 KB pages work, too */
    bool granted = madvise(area->start, area->bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0;
    return huge && granted && budget->huge;
}

void hps_host_area_collapse(const struct hps_host_area *area, size_t from)
{
    (void)madvise(area->start + from, HPS_HOST_HUGE_BYTES, MADV_COLLAPSE);
}

void hps_host_area_discard(const struct hps_host_area *area, size_t from, size_t to)
{
    from = hps_host_pages_round(from);
    to &= ~(size_t)(HPS_HOST_PAGE_BYTES - 1);
    HPS_ASSERT(to <= area->bytes);
    if (from < to) {
        int failed = madvise(area->start + from, to - from, MADV_DONTNEED);
        HPS_ASSERT(failed == 0);
    }
}

void hps_host_area_free(struct hps_host_area *area)
{
    unmap(area->start, area->bytes);
    *area = (struct hps_host_area){0};
}

bool hps_host_huge_pages(const char **out_why)
{
    char text[128];
    int fd = open(THP_FILE, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (size < 0) {
        *out_why = "the kernel has no transparent huge pages";
        return false;
    }
    text[size] = '\0';
    if (strstr(text, "[never]") != NULL) {
        *out_why = THP_FILE " is 'never'; hpsd needs 'madvise'";
        return false;
    }
    return true;
}
