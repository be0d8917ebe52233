/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads by io_uring, with system calls alone: only reads are needed, and containers may forbid all
 * of it. The kernel and this thread share two rings of numbers. The thread adds requests at the
 * tail of the submission ring, and takes results from the head of the completion ring. One thread
 * per ring at a time.
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"

struct hps_basefile_rings {
    struct io_uring_params params;
    uint8_t *rings; /* both rings */
    size_t rings_bytes;
    struct io_uring_sqe *entries;
    size_t entries_bytes;
    unsigned n_queued; /* not submitted yet */
};

/* A field that is shared with the kernel. */
static _Atomic(uint32_t) *field(const struct hps_basefile_rings *shared, uint32_t offset)
{
    return (_Atomic(uint32_t) *)(void *)(shared->rings + offset);
}

/* Whether the kernel has IORING_OP_READ. */
static bool has_reads(int fd)
{
    enum { OPS = IORING_OP_READ + 1 };
    struct io_uring_probe *probe = hps_calloc(1, sizeof(*probe) + OPS * sizeof(probe->ops[0]));
    bool has = probe != NULL &&
               syscall(SYS_io_uring_register, fd, IORING_REGISTER_PROBE, probe, OPS) == 0 &&
               probe->last_op >= IORING_OP_READ &&
               (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0;
    hps_free(probe);
    return has;
}

static void *map(int fd, size_t bytes, off_t offset)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    return at != MAP_FAILED ? at : NULL;
}

static bool rings_map(struct hps_basefile_rings *shared, int fd)
{
    const struct io_uring_params *p = &shared->params;
    size_t sq_bytes = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    size_t cq_bytes = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    if ((p->features & IORING_FEAT_SINGLE_MMAP) == 0) {
        return false;
    }
    shared->rings_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    shared->entries_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    shared->rings = map(fd, shared->rings_bytes, IORING_OFF_SQ_RING);
    shared->entries = map(fd, shared->entries_bytes, IORING_OFF_SQES);
    return shared->rings != NULL && shared->entries != NULL;
}

struct hps_basefile_ring *hps_basefile_ring_new(void)
{
    struct hps_basefile_ring *ring = hps_calloc(1, sizeof(*ring));
    if (ring == NULL) {
        return NULL;
    }
    ring->fd = -1;
    ring->shared = hps_calloc(1, sizeof(*ring->shared));
    ring->buffer = hps_alloc_aligned(HPS_BASEFILE_PAGE_BYTES, HPS_BASEFILE_RING_BYTES);
    if (ring->shared != NULL && ring->buffer != NULL) {
        ring->fd = (int)syscall(SYS_io_uring_setup, HPS_BASEFILE_DEPTH, &ring->shared->params);
    }
    if (ring->fd < 0 || !has_reads(ring->fd) || !rings_map(ring->shared, ring->fd)) {
        hps_basefile_ring_free(ring);
        return NULL;
    }
    return ring;
}

void hps_basefile_ring_free(struct hps_basefile_ring *ring)
{
    if (ring == NULL) {
        return;
    }
    if (ring->shared != NULL && ring->shared->rings != NULL) {
        munmap(ring->shared->rings, ring->shared->rings_bytes);
    }
    if (ring->shared != NULL && ring->shared->entries != NULL) {
        munmap(ring->shared->entries, ring->shared->entries_bytes);
    }
    if (ring->fd >= 0) {
        close(ring->fd);
    }
    hps_free_aligned(ring->buffer);
    hps_free(ring->shared);
    hps_free(ring);
}

void hps_basefile_ring_add(struct hps_basefile_ring *ring, int fd, uint64_t offset, uint32_t size,
                           uint8_t *to, uint32_t tag)
{
    struct hps_basefile_rings *shared = ring->shared;
    const struct io_uring_params *p = &shared->params;
    uint32_t tail = atomic_load_explicit(field(shared, p->sq_off.tail), memory_order_relaxed);
    uint32_t place = tail & (p->sq_entries - 1);
    HPS_ASSERT(shared->n_queued < p->sq_entries);
    shared->entries[place] = (struct io_uring_sqe){.opcode = IORING_OP_READ,
                                                   .fd = fd,
                                                   .off = offset,
                                                   .addr = (uint64_t)(uintptr_t)to,
                                                   .len = size,
                                                   .user_data = tag};
    atomic_store_explicit(field(shared, p->sq_off.array + place * (uint32_t)sizeof(uint32_t)),
                          place, memory_order_relaxed);
    atomic_store_explicit(field(shared, p->sq_off.tail), tail + 1, memory_order_release);
    shared->n_queued++;
}

bool hps_basefile_ring_wait(struct hps_basefile_ring *ring)
{
    struct hps_basefile_rings *shared = ring->shared;
    for (;;) {
        long n = syscall(SYS_io_uring_enter, ring->fd, shared->n_queued, 1, IORING_ENTER_GETEVENTS,
                         NULL, 0);
        if (n >= 0) {
            HPS_ASSERT((unsigned long)n <= shared->n_queued);
            shared->n_queued -= (unsigned)n;
            if (shared->n_queued == 0) {
                return true;
            }
        } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
            return false;
        }
    }
}

bool hps_basefile_ring_take(struct hps_basefile_ring *ring, uint32_t *out_tag, int *out_result)
{
    struct hps_basefile_rings *shared = ring->shared;
    const struct io_uring_params *p = &shared->params;
    uint32_t head = atomic_load_explicit(field(shared, p->cq_off.head), memory_order_relaxed);
    if (head == atomic_load_explicit(field(shared, p->cq_off.tail), memory_order_acquire)) {
        return false;
    }
    const struct io_uring_cqe *result =
        (const struct io_uring_cqe *)(const void *)(shared->rings + p->cq_off.cqes) +
        (head & (p->cq_entries - 1));
    *out_tag = (uint32_t)result->user_data;
    *out_result = result->res;
    atomic_store_explicit(field(shared, p->cq_off.head), head + 1, memory_order_release);
    return true;
}
