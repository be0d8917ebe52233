/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the host map: the byte budget that its tables share, and areas of address space. The
 * address space of an area is reserved once; its memory becomes accessible from the start on, as
 * needed. Accounts are thread-safe. An area must be used only by its owner.
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
    _Atomic(uint64_t) reserved_bytes; /* address space reserved for rows */
    bool huge;                        /* the system provides huge pages on request */
};

/* The bytes of the budget that one table uses. */
struct hps_host_account {
    struct hps_host_budget *budget;
    _Atomic(uint64_t) bytes_max; /* limit of this table; UINT64_MAX: only the budget limits it */
    _Atomic(uint64_t) used_bytes;
    _Atomic(uint64_t) huge_bytes; /* bytes in areas with huge pages */
    bool starved; /* the last charge failed because the budget was full; not thread-safe */
};

void hps_host_account_init(struct hps_host_account *account, struct hps_host_budget *budget);
/* Charge bytes to the table and the budget. False: this would exceed the budget or the limit of the
 * table; nothing is charged. */
bool hps_host_charge(struct hps_host_account *account, uint64_t bytes);
void hps_host_discharge(struct hps_host_account *account, uint64_t bytes);
/* Bytes of the budget that are not charged. */
uint64_t hps_host_available(const struct hps_host_budget *budget);

/* A range of address space that starts at a multiple of 2 MB. It needs one or two mappings at any
 * size. With one mapping per 2 MB, 128 GiB would reach the system's limit of 65,530 mappings. */
struct hps_host_area {
    uint8_t *start;
    size_t bytes;     /* reserved */
    size_t committed; /* accessible bytes from the start; newly accessible bytes are zero */
};

/* Reserve address space; `bytes` is rounded up to pages. False: the system has no such range. */
bool hps_host_area_reserve(struct hps_host_area *area, size_t bytes);
/* Make the first `bytes` of the area accessible. False: the system refuses; nothing has changed. */
bool hps_host_area_commit(struct hps_host_area *area, size_t bytes);
/* Request huge pages (2 MB) for the whole area if `huge`, otherwise small pages. Returns whether
 * the area will have huge pages. */
bool hps_host_area_advise(const struct hps_host_area *area, const struct hps_host_budget *budget,
                          bool huge);
/* Merge the small pages of the 2 MB at offset `from`, a multiple of 2 MB, into one huge page. If
 * the system cannot merge them now, it may do so later. */
void hps_host_area_collapse(const struct hps_host_area *area, size_t from);
/* Return the complete pages in the byte range [from, to) to the system. They read as zeros
 * afterwards. */
void hps_host_area_discard(const struct hps_host_area *area, size_t from, size_t to);
void hps_host_area_free(struct hps_host_area *area); /* no effect on a zeroed area */

/* Whether the system provides transparent huge pages on request. False: *out_why is the reason, as
 * static text. */
bool hps_host_huge_pages(const char **out_why);

static inline size_t hps_host_pages_round(size_t bytes)
{
    return (bytes + HPS_HOST_PAGE_BYTES - 1) & ~(size_t)(HPS_HOST_PAGE_BYTES - 1);
}

#endif
