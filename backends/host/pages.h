/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the host map: the byte budget that its tables share, and areas of address space that
 * are reserved once and given pages from their start on. Accounts: any thread; areas: their owner.
 */
#ifndef HPS_BACKENDS_HOST_PAGES_H
#define HPS_BACKENDS_HOST_PAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HPS_HOST_HUGE_BYTES = 2 << 20, HPS_HOST_PAGE_BYTES = 4096 };

struct hps_host_budget {
    uint64_t bytes_max;
    _Atomic(uint64_t) used_bytes;
    _Atomic(uint64_t) reserved_bytes; /* of address space, for rows */
    bool huge;                        /* the system gives huge pages to those who ask */
};

/* What one table takes of the budget. */
struct hps_host_account {
    struct hps_host_budget *budget;
    _Atomic(uint64_t) bytes_max; /* of this table; UINT64_MAX: only the budget counts */
    _Atomic(uint64_t) used_bytes;
    _Atomic(uint64_t) huge_bytes; /* in areas for which huge pages were asked and are to be had */
    bool starved; /* the last charge was refused for the budget's sake (of the owner's thread) */
};

void hps_host_account_init(struct hps_host_account *account, struct hps_host_budget *budget);
/* False: over the budget, or over what the table may have; nothing is charged then. */
bool hps_host_charge(struct hps_host_account *account, uint64_t bytes);
void hps_host_discharge(struct hps_host_account *account, uint64_t bytes);
uint64_t hps_host_available(const struct hps_host_budget *budget);

/* Starts at a multiple of 2 MB. One or two mappings, however large it becomes: one per slab would
 * meet the system's limit of mappings (65,530) at 128 GiB. */
struct hps_host_area {
    uint8_t *start;
    size_t bytes;     /* reserved */
    size_t committed; /* bytes from the start that may be touched; they read as zeros at first */
};

/* bytes: rounded up to pages. False: no address space. */
bool hps_host_area_reserve(struct hps_host_area *area, size_t bytes);
/* False: the system refuses; nothing has changed. */
bool hps_host_area_commit(struct hps_host_area *area, size_t bytes);
/* Ask for pages of 2 MB in all of the area, or for small ones. Returns whether it will have huge
 * ones. */
bool hps_host_area_advise(const struct hps_host_area *area, const struct hps_host_budget *budget,
                          bool huge);
/* Make one huge page now of the small ones from `from` on, a multiple of 2 MB. A wish: where the
 * system cannot, it does so by itself some time. */
void hps_host_area_collapse(const struct hps_host_area *area, size_t from);
/* Give the whole pages in [from, to) back; they read as zeros then. */
void hps_host_area_discard(const struct hps_host_area *area, size_t from, size_t to);
void hps_host_area_free(struct hps_host_area *area); /* of a zeroed area: nothing */

/* Whether the system gives transparent huge pages to those who ask; out_why: static text if not. */
bool hps_host_huge_pages(const char **out_why);

static inline size_t hps_host_pages_round(size_t bytes)
{
    return (bytes + HPS_HOST_PAGE_BYTES - 1) & ~(size_t)(HPS_HOST_PAGE_BYTES - 1);
}

#endif
